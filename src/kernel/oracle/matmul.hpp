// The oracle's one inner loop: c += a·b in float64 or fp32, SIMD by run-time dispatch.
#pragma once

#include <cstdint>
#include <vector>

namespace rotunda::oracle_detail {

/// A matrix of any element type in row-major order with padded rows: a whole SIMD vector may be read (or, in a product,
/// written) from every column, so what stands in the padding is never a meaningful number.
template <class T>
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::int64_t rows, std::int64_t columns) { resize(rows, columns); }

  /// Forgets the contents and fills with 0. Keeps its memory for reuse.
  void resize(std::int64_t rows, std::int64_t columns) {
    rows_ = rows;
    columns_ = columns;
    // A cache line of padding, and an odd number of lines a row: columns do not fall into one cache set.
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    stride_ = ((columns + line - 1) / line + 1) / 2 * 2 * line + line;
    values_.assign(static_cast<std::size_t>(rows * stride_), T(0));
  }

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  [[nodiscard]] std::int64_t stride() const { return stride_; }
  [[nodiscard]] T* row(std::int64_t i) { return values_.data() + i * stride_; }
  [[nodiscard]] const T* row(std::int64_t i) const { return values_.data() + i * stride_; }

 private:
  std::int64_t rows_ = 0, columns_ = 0, stride_ = 0;
  std::vector<T> values_;
};

/// c[m, n] += a[m, k]·b[k, n], rows a_row, b_row, c_row elements apart.
/// Reads of b and writes of c go up to the next whole 64 bytes of a row.
template <class T>
struct Product {
  const T* a;
  std::int64_t a_row;
  const T* b;
  std::int64_t b_row;
  T* c;
  std::int64_t c_row;
  std::int64_t m, n, k;
};

void multiply_add(const Product<double>& product);
void multiply_add(const Product<float>& product);

}  // namespace rotunda::oracle_detail
