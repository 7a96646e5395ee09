// Products of whole matrices and of parts of them, and small arithmetic on rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernel/oracle/matmul.hpp"
#include "kernel/oracle/runs.hpp"

namespace rotunda::oracle_detail {

/// c += a·b for rows [rows.begin, rows.end) of a and b from column `b_column` on; as many columns as c has.
template <class Real>
void add_product(const Matrix<Real>& a, Range rows, const Matrix<Real>& b, std::int64_t b_column, Matrix<Real>& c) {
  multiply_add(Product<Real>{a.row(rows.begin), a.stride(), b.row(0) + b_column, b.stride(), c.row(0), c.stride(),
                             rows.size(), c.columns(), a.columns()});
}

/// c += a·b for rows [rows.begin, rows.end) of b.
template <class Real>
void add_product(const Matrix<Real>& a, const Matrix<Real>& b, Range rows, Matrix<Real>& c) {
  multiply_add(Product<Real>{a.row(0), a.stride(), b.row(rows.begin), b.stride(), c.row(0), c.stride(), c.rows(),
                             c.columns(), rows.size()});
}

template <class Real>
double largest(const Real* values, std::int64_t count) {
  double most = 0;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(static_cast<double>(values[i])));
  return most;
}

inline double square(double x) {
  return x * x;
}

}  // namespace rotunda::oracle_detail
