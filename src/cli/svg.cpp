#include "cli/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace rotunda::cli {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace

void Svg::grow(double bottom) {
  height_ = std::max(height_, bottom);
}

void Svg::rect(double x, double y, double w, double h, std::string_view fill, std::string_view tip) {
  body_ +=
      fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"", x, y, w, h, fill);
  body_ += tip.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(tip));
  grow(y + h);
}

void Svg::frame(double x, double y, double w, double h) {
  body_ += fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"none\" stroke=\"#999\" "
      "stroke-width=\"1\"/>\n",
      x, y, w, h);
  grow(y + h);
}

void Svg::text(double x, double y, std::string_view words, double size, std::string_view colour) {
  body_ += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{}\" fill=\"{}\">{}</text>\n", x, y, size, colour,
                       escaped(words));
  grow(y + size / 3);
}

void Svg::bold(double x, double y, std::string_view words, double size) {
  body_ += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{}\" font-weight=\"600\" fill=\"#111\">{}</text>\n",
                       x, y, size, escaped(words));
  grow(y + size / 3);
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view colour) {
  body_ +=
      fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"{}\" stroke-width=\"1\"/>\n",
                  x1, y1, x2, y2, colour);
  grow(std::max(y1, y2));
}

std::string Svg::document() const {
  const double height = height_ + 20;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "shape-rendering=\"crispEdges\" font-family=\"system-ui, 'Helvetica Neue', Arial, 'DejaVu Sans', "
      "sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n{2}</svg>\n",
      width_, height, body_);
}

std::string rank_colour(int rank, double light) {
  // Eight hues that stay apart for colour-blind readers too, as far as eight can.
  constexpr std::array<std::array<int, 3>, 8> palette{{{0x2f, 0x6d, 0xa8},
                                                       {0xe0, 0x7b, 0x22},
                                                       {0x3d, 0x8f, 0x4f},
                                                       {0xc8, 0x40, 0x55},
                                                       {0x8a, 0x63, 0xae},
                                                       {0x2a, 0x9d, 0xa0},
                                                       {0xb8, 0x96, 0x12},
                                                       {0x7b, 0x5a, 0x45}}};
  if (rank < 0) return "#999999";
  const auto& base = palette[static_cast<std::size_t>(rank) % palette.size()];
  const auto mix = [&](int channel) {
    return static_cast<int>(channel + (255 - channel) * std::clamp(light, 0.0, 1.0));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(base[0]), mix(base[1]), mix(base[2]));
}

}  // namespace rotunda::cli
