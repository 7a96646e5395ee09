// How far an answer is from the exact one, in units of what the naive algorithm gets wrong.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/fail.hpp"
#include "base/half.hpp"
#include "kernel/oracle/rounding.hpp"
#include "rotunda/oracle.hpp"

namespace rotunda {
namespace {

using oracle_detail::kFp32Rounding;
using oracle_detail::rounding;

/// Half the step between the smallest numbers of the dtype, which fp16 results do reach.
double smallest_rounding(DType dtype) {
  return dtype == DType::fp16 ? 0x1p-25 : 0;
}

/// Calls body(index, value) for every element of a view in the order [batch, row, head, dim].
template <class Body>
void for_each_value(const TensorView& view, Body&& body) {
  dispatch_dtype(view.dtype, [&](auto element) {
    std::size_t index = 0;
    for (std::int64_t b = 0; b < view.batch(); ++b) {
      for (std::int64_t row = 0; row < view.rows(); ++row) {
        for (std::int64_t head = 0; head < view.heads(); ++head) {
          const auto* values = view.at<decltype(element)>(b, row, head);
          for (std::int64_t i = 0; i < view.dim(); ++i) {
            body(index++, static_cast<double>(static_cast<float>(values[i * view.stride[3]])));
          }
        }
      }
    }
  });
}

/// Walks an answer and what was got together: body(index, exact, got) where both are finite. An exact NaN is undefined
/// and not compared. Counts what is skipped and what is misplaced.
template <class Body>
void compare(const std::vector<double>& exact, const TensorView& got, Grade& grade, Body&& body) {
  for_each_value(got, [&](std::size_t i, double value) {
    if (std::isfinite(exact[i]) && std::isfinite(value)) {
      body(i, exact[i], value);
    } else if (std::isnan(exact[i])) {
      ++grade.skipped;
    } else if (exact[i] != value) {
      ++grade.misplaced;
    }
  });
}

Grade grade_logits(const char* name, const std::vector<double>& exact, const TensorView& got) {
  Grade grade{.tensor = name, .bar = 1};
  compare(exact, got, grade, [&](std::size_t, double want, double value) {
    const double error = std::abs(want - value);
    grade.error = std::max(grade.error, error);
    grade.ratio = std::max(grade.ratio, error / (1e-5 * std::max(1.0, std::abs(want))));
  });
  return grade;
}

/// The bar is twice the naive algorithm's largest error. Its floor: half a rounding to the dtype, one fp32 rounding of
/// the largest answer, and `terms`.
Grade grade_sums(const char* name, DType dtype, const std::vector<double>& exact, const std::vector<double>& naive,
                 double terms, const TensorView& got) {
  Grade grade{.tensor = name};
  double size = 0;
  compare(exact, got, grade, [&](std::size_t i, double want, double value) {
    grade.error = std::max(grade.error, std::abs(want - value));
    size = std::max(size, std::abs(want));
    // Where the naive algorithm overflows it sets no bar.
    if (std::isfinite(naive[i])) grade.naive_error = std::max(grade.naive_error, std::abs(want - naive[i]));
  });
  const double floor = (rounding(dtype) / 2 + kFp32Rounding) * size + smallest_rounding(dtype) + terms;
  const double allowed = std::max(grade.naive_error, floor);
  if (grade.error > 0) grade.ratio = allowed > 0 ? grade.error / allowed : HUGE_VAL;
  return grade;
}

}  // namespace

std::vector<Grade> grade(const Problem& problem, const OracleResult& want, const Tensors& got) {
  const Answers& exact = want.exact;
  const Answers& naive = want.naive;
  const ErrorFloors& floors = want.floors;
  std::vector<Grade> grades;
  const auto check = [](const char* name, const std::vector<double>& answers, const TensorView& view) {
    if (static_cast<std::int64_t>(answers.size()) == view.elements()) return;
    fail(ErrorKind::internal, "grade: {} is {}, the oracle has {} values", name, describe(view), answers.size());
  };
  const auto logits = [&](const char* name, const std::vector<double>& answers, const TensorView& view) {
    if (view.data == nullptr) return;
    check(name, answers, view);
    grades.push_back(grade_logits(name, answers, view));
  };
  const auto sums = [&](const char* name, std::vector<double> Answers::*tensor, double terms, const TensorView& view) {
    if (view.data == nullptr) return;
    check(name, exact.*tensor, view);
    grades.push_back(grade_sums(name, problem.dtype, exact.*tensor, naive.*tensor, terms, view));
  };
  sums("out", &Answers::out, floors.out, got.out);
  logits("lse", exact.lse, got.lse);
  logits("max_logit", exact.max_logit, got.max_logit);
  sums("dq", &Answers::dq, floors.dq, got.dq);
  sums("dk", &Answers::dk, floors.dk, got.dk);
  sums("dv", &Answers::dv, floors.dv, got.dv);
  sums("dsink", &Answers::dsink, floors.dsink, got.dsink);
  return grades;
}

}  // namespace rotunda
