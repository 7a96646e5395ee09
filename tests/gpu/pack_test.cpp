// Packing and unpacking, bit by bit: NaN payloads, -0, infinities and denormals travel unchanged.
#include "base/cuda/pack.hpp"

#include <algorithm>
#include <deque>

#include "mirror.hpp"
#include "rotunda/error.hpp"

namespace rotunda {
namespace {

using cuda::IndexWidth;
using cuda::Move;
using testing::Form;
using testing::Mirror;

/// Random bits, among them every kind of special value.
void fill_bits(const TensorView& view, std::uint64_t seed) {
  static constexpr std::uint32_t kSpecial[] = {0x7fc00001U, 0xffedcba9U, 0x7f800001U, 0x80000000U, 0xff800000U,
                                               0x7f800000U, 0x00000001U, 0x807fffffU, 0x7f817f81U, 0x00010001U};
  const std::size_t size = size_of(view.dtype);
  std::uint64_t n = seed << 32;
  testing::for_each_element(view, [&](auto b, auto row, auto head, auto i) {
    const std::uint64_t random = testing::splitmix64(n++);
    const auto bits = random % 3 == 0 ? kSpecial[random / 3 % 10] : static_cast<std::uint32_t>(random >> 32);
    const std::int64_t at = b * view.stride[0] + row * view.stride[1] + head * view.stride[2] + i * view.stride[3];
    std::memcpy(static_cast<std::byte*>(view.data) + at * static_cast<std::int64_t>(size), &bits, size);
  });
}

/// The bytes of a view in dense order.
std::vector<std::byte> dense_bytes(const TensorView& view) {
  const std::size_t size = size_of(view.dtype);
  std::vector<std::byte> bytes;
  testing::for_each_element(view, [&](auto b, auto row, auto head, auto i) {
    const std::int64_t at = b * view.stride[0] + row * view.stride[1] + head * view.stride[2] + i * view.stride[3];
    const auto* from = static_cast<std::byte*>(view.data) + at * static_cast<std::int64_t>(size);
    bytes.insert(bytes.end(), from, from + size);
  });
  return bytes;
}

/// Views of one message, each at a place in the buffer, with `space` unused bytes behind it.
struct Message {
  std::deque<Mirror> mirrors;
  std::vector<Move> moves;
  std::vector<std::vector<std::byte>> want;
  std::int64_t bytes = 0;

  void add(const Device& device, const TensorView& view, std::int64_t lead, std::uint64_t seed, std::int64_t space) {
    Mirror& mirror = mirrors.emplace_back(device, view, lead);
    fill_bits(mirror.host(), seed);
    want.push_back(dense_bytes(mirror.host()));
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    bytes = (bytes + size - 1) / size * size;
    moves.push_back({mirror.device(), bytes});
    bytes += static_cast<std::int64_t>(want.back().size()) + space;
  }
};

class CudaPack : public testing::GpuTest {
 protected:
  void check(Message& message, IndexWidth width) const {
    const DeviceMemory buffer(device, message.bytes + 1);
    set_bytes(buffer.data(), 0xa5, message.bytes + 1, device, stream());
    for (const Mirror& mirror : message.mirrors) mirror.upload_all(stream());
    cuda::pack(message.moves, buffer.data(), device, stream(), width);
    std::vector<std::byte> got(static_cast<std::size_t>(message.bytes + 1));
    copy_bytes(got.data(), buffer.data(), message.bytes + 1, device, stream());
    synchronize(device, stream());
    std::vector<std::byte> want(got.size(), std::byte{0xa5});
    for (std::size_t i = 0; i < message.moves.size(); ++i) {
      std::copy(message.want[i].begin(), message.want[i].end(), want.begin() + message.moves[i].offset);
    }
    ASSERT_TRUE(got == want) << "packed bytes differ at "
                             << std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin();
    // Back into memory that holds something else.
    for (const Mirror& mirror : message.mirrors) {
      set_bytes(mirror.device().data, 0xff, mirror.bytes_from_data(), device, stream());
    }
    cuda::unpack(buffer.data(), message.moves, device, stream(), width);
    for (std::size_t i = 0; i < message.moves.size(); ++i) {
      message.mirrors[i].fetch(stream());
      ASSERT_TRUE(dense_bytes(message.mirrors[i].fetched()) == message.want[i]) << "unpacked bytes differ, move " << i;
      message.mirrors[i].expect_gaps_untouched();
    }
  }
};

TensorView view_of(const Form& form, DType dtype) {
  TensorView view = make_view(nullptr, dtype, form.layout, form.b, form.s, form.h, form.d + form.gap);
  view.shape[3] = form.d;
  return view;
}

TEST_F(CudaPack, OneViewOfEveryForm) {
  for (const Form& form : testing::forms()) {
    for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
      for (const IndexWidth width : {IndexWidth::automatic, IndexWidth::narrow, IndexWidth::wide}) {
        for (const std::int64_t before : {0, 4, 8, 20}) {  // places that allow units of 16, 4, 8, 4 bytes
          SCOPED_TRACE(::testing::Message() << form << " " << to_string(dtype) << " at " << before);
          Message message;
          message.bytes = before;
          message.add(device, view_of(form, dtype), form.lead, 1, 3);
          check(message, width);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(CudaPack, EightViewsInOneLaunch) {
  const auto forms = testing::forms();
  for (const IndexWidth width : {IndexWidth::automatic, IndexWidth::narrow, IndexWidth::wide}) {
    for (std::size_t first = 0; first < forms.size(); ++first) {
      Message message;
      for (std::size_t i = 0; i < cuda::kMostMoves; ++i) {
        const Form& form = forms[(first + i) % forms.size()];
        const DType dtype = static_cast<DType>((first + i) % 3);
        if (i == 5) {  // an LSE, whose dense order is another than that of its memory
          message.add(device, make_row_view(nullptr, form.b, form.s, form.h), 0, i, 0);
        } else {
          message.add(device, view_of(form, dtype), form.lead, i, static_cast<std::int64_t>(i % 3));
        }
      }
      SCOPED_TRACE(::testing::Message() << "from form " << first);
      check(message, width);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaPack, NothingAndTooMuch) {
  cuda::pack({}, nullptr, device, stream());
  const std::vector<Move> nine(9);
  EXPECT_THROW(cuda::pack(nine, nullptr, device, stream()), Error);
}

}  // namespace
}  // namespace rotunda
