// The part of dense.hpp that communicates.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tessera/core/hash.hpp>
#include <tessera/parallel/communicator.hpp>

#include "support/dense.hpp"

namespace tessera::test {

namespace {

parallel::CallInfo info_of(const Tensor& t) { return {"test", t.layout(), t.device()}; }

/// This rank's part as a dense array, Partial taken.
DenseArray local_array(const Tensor& t) {
  const Box& box = t.local_box();
  DenseArray local(box.shape());
  std::size_t next = 0;
  const View view = t.local();
  for_each(box.shape(), [&](const Index& index) {
    std::int64_t offset = 0;
    for (int d = 0; d < index.size(); ++d) offset += index[d] * view.strides[d];
    local.values[next++] = load_as_double(view.data, view.dtype, offset);
  });
  if (t.layout().partial_axes() != 0) {
    const auto group = parallel::Group::of(t.mesh(), t.layout().partial_axes());
    parallel::all_reduce(group, local.values.data(), local.size(), DType::kFloat64,
                         t.layout().partial_op(), info_of(t))
        .wait();
  }
  return local;
}

}  // namespace

Tensor to_tensor(const DenseArray& a, const Layout& layout, DType dtype) {
  if (layout.shape() != a.shape)
    throw ShapeError(str("to_tensor: ", layout.shape(), " and ", a.shape));
  const Mesh& mesh = layout.mesh();
  const AxisMask partial = layout.partial_axes();
  if (partial == 0 || mesh.rank() < 0) {
    return Tensor::from_function(
        layout, [&](const Index& i) { return a[i]; }, dtype);
  }
  const std::vector<int> members = mesh.group(mesh.rank(), partial);
  const auto place = std::find(members.begin(), members.end(), mesh.rank()) - members.begin();
  const auto count = static_cast<std::int64_t>(members.size());
  const ReduceOp op = layout.partial_op();
  const auto noise = [&](std::int64_t element, std::int64_t part) {
    return uniform_at(layout.hash() + static_cast<std::uint64_t>(part), element) - 0.5;
  };
  return Tensor::from_function(
      layout,
      [&](const Index& i) {
        const auto element = static_cast<std::int64_t>(a.offset(i));
        if (op == ReduceOp::kSum) {
          // Pieces rounded to bf16 would not add up to the value.
          if (dtype == DType::kBFloat16) return element % count == place ? a[i] : 0.0;
          if (place != 0) return noise(element, place);
          double rest = a[i];
          for (std::int64_t p = 1; p < count; ++p) rest -= noise(element, p);
          return rest;
        }
        if (element % count == place) return a[i];
        const double away = std::abs(noise(element, place));
        return op == ReduceOp::kMax ? a[i] - away : a[i] + away;
      },
      dtype);
}

Tensor to_self(const DenseArray& a, DType dtype) {
  return to_tensor(a, Layout::replicated(Mesh::self(), a.shape), dtype);
}

DenseArray to_dense(const Tensor& t) {
  const Layout& layout = t.layout();
  DenseArray local = local_array(t);
  if (layout.split_axes() == 0) {
    local.shape = t.shape();
    return local;
  }
  // Every element has exactly one non-zero contribution within the group of split axes.
  DenseArray whole(t.shape());
  std::size_t next = 0;
  for_each_index(t.local_box(), [&](const Index& i) { whole[i] = local.values[next++]; });
  parallel::all_reduce(parallel::Group::of(t.mesh(), layout.split_axes()), whole.values.data(),
                       whole.size(), DType::kFloat64, ReduceOp::kSum, info_of(t))
      .wait();
  return whole;
}

namespace {

std::string compare_box(const std::string& what,
                        const DenseArray& actual,
                        const Box& box,
                        const DenseArray& expected,
                        double tolerance,
                        double floor) {
  const double allowed = tolerance * std::max(expected.largest(), floor);
  double worst = 0.0;
  std::string where;
  std::int64_t wrong = 0;
  std::size_t next = 0;
  for_each_index(box, [&](const Index& i) {
    const double a = actual.values[next++];
    const double e = expected[i];
    const double difference = std::abs(a - e);
    if (difference <= allowed || a == e || (std::isnan(a) && std::isnan(e))) return;
    ++wrong;
    const double size =
        std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    if (size > worst) {
      worst = size;
      where = str("at ", i, ": ", a, " instead of ", e);
    }
  });
  if (wrong == 0) return {};
  return str(what, ": ", wrong, " of ", box.volume(), " values differ by more than ", allowed,
             ", the most ", where, "\n");
}

}  // namespace

std::string compare(const std::string& what,
                    const DenseArray& actual,
                    const DenseArray& expected,
                    double tolerance,
                    double floor) {
  if (actual.shape != expected.shape)
    return str(what, ": shape ", actual.shape, " instead of ", expected.shape, "\n");
  return compare_box(what, actual, Box::whole(actual.shape), expected, tolerance, floor);
}

std::string compare(const std::string& what,
                    const Tensor& actual,
                    const DenseArray& expected,
                    double tolerance,
                    double floor) {
  // Shapes are global metadata: all ranks return here together.
  if (!actual.defined()) return str(what, ": undefined\n");
  if (actual.shape() != expected.shape) {
    return str(what, ": shape ", actual.shape(), " instead of ", expected.shape, "\n");
  }
  if (actual.mesh().rank() < 0) return {};
  return compare_box(what, local_array(actual), actual.local_box(), expected, tolerance, floor);
}

bool any_process(bool flag) {
  std::int64_t value = flag ? 1 : 0;
  parallel::all_reduce(parallel::Group::world(), &value, 1, DType::kInt64, ReduceOp::kMax,
                       {"test", {}, {}})
      .wait();
  return value != 0;
}

std::string agreed(const std::string& failure) {
  const bool any = any_process(!failure.empty());
  return any && failure.empty() ? "failed on another process\n" : failure;
}

std::uint64_t from_process_0(std::uint64_t value) {
  parallel::broadcast(parallel::Group::world(), &value, sizeof value, 0, {"test", {}, {}}).wait();
  return value;
}

}  // namespace tessera::test
