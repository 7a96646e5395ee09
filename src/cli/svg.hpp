// A small writer of SVG: rectangles, text, lines. The result stands alone (no fonts, scripts or links).
#pragma once

#include <string>
#include <string_view>

namespace rotunda::cli {

class Svg {
 public:
  explicit Svg(double width) : width_(width) {}

  /// `tip` shows while the pointer rests on it.
  void rect(double x, double y, double w, double h, std::string_view fill, std::string_view tip = {});
  void frame(double x, double y, double w, double h);
  void text(double x, double y, std::string_view words, double size = 12, std::string_view colour = "#222");
  void bold(double x, double y, std::string_view words, double size = 15);
  void line(double x1, double y1, double x2, double y2, std::string_view colour = "#bbb");

  /// The document, as high as what was drawn.
  [[nodiscard]] std::string document() const;

 private:
  void grow(double bottom);

  double width_, height_ = 0;
  std::string body_;
};

/// A rank's colour, lightened: 0 full, 1 white.
[[nodiscard]] std::string rank_colour(int rank, double light = 0);

}  // namespace rotunda::cli
