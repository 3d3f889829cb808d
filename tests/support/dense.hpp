#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera::test {

/// Whole values in double, row-major: what references compute on.
struct DenseArray {
  Shape shape;
  std::vector<double> values;
  bool absent = false;  ///< stands for an undefined optional tensor

  DenseArray() = default;
  explicit DenseArray(const Shape& s, double fill = 0.0)
      : shape(s), values(static_cast<std::size_t>(s.product()), fill) {}

  std::int64_t size() const { return static_cast<std::int64_t>(values.size()); }
  /// Row-major position of an index, given as numbers or as an Index.
  std::size_t offset(const Index& index) const;
  double& operator[](const Index& index) { return values[offset(index)]; }
  double operator[](const Index& index) const { return values[offset(index)]; }
  template <class... I>
  double& operator()(I... i) {
    return values[offset(Index{static_cast<std::int64_t>(i)...})];
  }
  template <class... I>
  double operator()(I... i) const {
    return values[offset(Index{static_cast<std::int64_t>(i)...})];
  }
  /// Largest absolute value; 0 when empty.
  double largest() const;
};

/// Calls f(index) for every index of `shape` in row-major order.
void for_each(const Shape& shape, const std::function<void(const Index&)>& f);
double dot(const DenseArray& a, const DenseArray& b);
/// Rounds every value to what `dtype` can hold.
DenseArray rounded_to(const DenseArray& a, DType dtype);

/// This rank's part of `a` under `layout`. Where the layout is Partial the pieces are random
/// numbers that combine to `a` (a sum in bf16: one is the value).
Tensor to_tensor(const DenseArray& a, const Layout& layout, DType dtype = DType::kFloat64);
/// The whole value on this process' own mesh, Mesh::self().
Tensor to_self(const DenseArray& a, DType dtype = DType::kFloat64);
/// The whole value of a tensor on any mesh; Partial is taken. Communicates unless the tensor is
/// replicated, without the exchange plans of the product. `mesh` members only.
DenseArray to_dense(const Tensor& t);

/// Numbers drawn from a seed: the same on every rank that starts from the same seed.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  /// Uniform on the integers lo..hi, both ends included.
  std::int64_t integer(std::int64_t lo, std::int64_t hi);
  /// Uniform on [lo, hi).
  double real(double lo = 0.0, double hi = 1.0);
  bool coin(double probability = 0.5) { return real() < probability; }
  template <class T>
  const T& choice(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(from.size()) - 1))];
  }
  Rng fork() { return Rng(bits()); }

 private:
  std::uint64_t state_;
};

/// Uniform on [0, 1), a function of seed and global element number alone.
double uniform_at(std::uint64_t seed, std::int64_t element);
/// Uniform on [lo, hi).
DenseArray random_array(const Shape& shape, std::uint64_t seed, double lo = -1.0, double hi = 1.0);

/// What is compared: `actual` against `expected` with |difference| <= tolerance * max(largest of
/// expected, floor). Returns the place and size of the worst difference, empty when there is none.
std::string compare(const std::string& what,
                    const DenseArray& actual,
                    const DenseArray& expected,
                    double tolerance,
                    double floor = 0.0);
/// Same for this rank's part of a tensor on any mesh. Communicates where it is Partial. The text
/// may differ by rank.
std::string compare(const std::string& what,
                    const Tensor& actual,
                    const DenseArray& expected,
                    double tolerance,
                    double floor = 0.0);

/// Whether any process of the job says so. Every process must call.
bool any_process(bool flag);
/// `failure`, or a word that another process has one: empty on all processes or on none.
std::string agreed(const std::string& failure);
/// The number that process 0 has.
std::uint64_t from_process_0(std::uint64_t value);

}  // namespace tessera::test
