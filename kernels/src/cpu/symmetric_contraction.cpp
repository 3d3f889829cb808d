#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/equivariant.hpp>
#include <vector>

#include "contraction_program.hpp"
#include "cpu/jet.hpp"
#include "cpu/padded_rows.hpp"
#include "cpu/simd.hpp"
#include "cpu/tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

/// Nodes of one element that share the coefficients in cache.
constexpr std::int64_t kNodes = 64;
/// Rows of the result: l_out <= 6.
constexpr int kMaxOutputs = 49;

struct NodeBlock {
  std::int64_t element;
  std::int64_t begin, end;  ///< in the list of nodes
};

/// Nodes by element, in their order.
struct NodeOrder {
  std::vector<std::int32_t> nodes;
  std::vector<std::int64_t> first;  ///< per element, and one more

  NodeOrder(const View& species, std::int64_t elements) {
    const std::int64_t count = species.shape[0];
    std::vector<std::int64_t> element(static_cast<std::size_t>(count));
    first.assign(static_cast<std::size_t>(elements) + 1, 0);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = i * species.strides[0];
      const std::int64_t z = species.dtype == DType::kInt64 ? species.as<std::int64_t>()[at]
                                                            : species.as<std::int32_t>()[at];
      if (z < 0 || z >= elements) {
        throw ShapeError(str("symmetric_contraction: species ", z, " of node ", i,
                             " of this rank is outside the ", elements,
                             " elements of the weights."));
      }
      element[static_cast<std::size_t>(i)] = z;
      ++first[static_cast<std::size_t>(z) + 1];
    }
    for (std::size_t z = 0; z < static_cast<std::size_t>(elements); ++z) first[z + 1] += first[z];
    nodes.resize(static_cast<std::size_t>(count));
    std::vector<std::int64_t> next(first.begin(), first.end() - 1);
    for (std::int64_t i = 0; i < count; ++i)
      nodes[static_cast<std::size_t>(
          next[static_cast<std::size_t>(element[static_cast<std::size_t>(i)])]++)] =
          static_cast<std::int32_t>(i);
  }
};

/// Rows of one node and register: the inputs as jets along the directions, and all products.
template <class T, int kOrder>
class Products {
  using S = Simd<T>;

 public:
  using Vector = typename S::Type;
  using J = Jet<Registers<T>, kOrder>;

  explicit Products(const ContractionProgram& program)
      : program_(program), products_(static_cast<std::size_t>(program.products())) {
    products_[0] = J::constant(Vector{} + T(1));
  }

  /// `sources`: the row of a, then those of the directions, all with this stride.
  void set(const T* const* sources, std::int64_t stride) {
    for (int i = 0; i < program_.inputs; ++i) {
      J& x = products_[static_cast<std::size_t>(1 + i)];
      x = J{};
      x.part[0] = S::load(sources[0] + i * stride);
      for (int d = 0; d < kOrder; ++d) x.part[1u << d] = S::load(sources[1 + d] + i * stride);
    }
    J* next = products_.data() + 1 + program_.inputs;
    for (const auto& pair : program_.pairs) *next++ = input(pair.i) * input(pair.j);
  }
  const J& input(int i) const { return products_[static_cast<std::size_t>(1 + i)]; }
  const J& product(int q) const { return products_[static_cast<std::size_t>(q)]; }

 private:
  const ContractionProgram& program_;
  std::vector<J> products_;
};

template <class T, int kOrder>
class Contraction {
  using S = Simd<T>;
  using Vector = typename S::Type;
  using J = Jet<Registers<T>, kOrder>;
  using Single = Jet<Registers<T>, 0>;
  static constexpr std::int64_t kLanes = kVectorLanes<T>;

 public:
  Contraction(const SymmetricContraction& c, ContractionSlot slot, const View& out)
      : program_(contraction_program(c.lmax, c.l_out, c.correlation, c.basis)),
        slot_(slot),
        species_(c.species),
        nodes_(c.a.shape[0]),
        elements_((slot == ContractionSlot::kW ? out : c.w).shape[0]),
        width_(round_up(c.a.shape[2], kLanes)),
        g_(slot == ContractionSlot::kG ? View{} : c.g, c.a.shape[2], width_),
        w_(slot == ContractionSlot::kW ? View{} : c.w, c.a.shape[2], width_),
        out_(out, c.a.shape[2], width_) {
    sources_.emplace_back(c.a, c.a.shape[2], width_);
    for (const View& d : c.directions) sources_.emplace_back(d, c.a.shape[2], width_);
  }

  void run() {
    const auto terms = static_cast<std::int64_t>(program_.terms.size());
    if (dry_run()) {
      if (slot_ != ContractionSlot::kW) coefficients_ = PoolScratch<T>(elements_ * terms * width_);
      return;
    }
    const NodeOrder order(species_, elements_);
    if (slot_ == ContractionSlot::kW) {
      weights(order);
    } else {
      make_coefficients(order);
      nodewise(order);
    }
    out_.finish();
  }

 private:
  std::int64_t term_count() const { return static_cast<std::int64_t>(program_.terms.size()); }
  double work() const {
    return static_cast<double>(nodes_ * width_ * term_count()) * (1 << kOrder);
  }

  /// [element][register][term][lanes], for the elements that occur.
  void make_coefficients(const NodeOrder& order) {
    coefficients_ = PoolScratch<T>(elements_ * term_count() * width_);
    const std::int64_t registers = width_ / kLanes;
    for_each_tile(
        elements_ * registers,
        tile_threads(elements_ * registers, static_cast<double>(elements_ * width_) *
                                                static_cast<double>(program_.table.size())),
        [&](std::int64_t tile) {
          const std::int64_t z = tile / registers;
          const auto at = static_cast<std::size_t>(z);
          if (order.first[at] == order.first[at + 1]) return;
          const T* const w = w_.data() + z * program_.weights * width_ + tile % registers * kLanes;
          T* const c = coefficients_.data() + tile * term_count() * kLanes;
          std::int32_t term = -1;
          Vector sum{};
          for (const auto& entry : program_.table) {
            if (entry.term != term) {
              if (term >= 0) S::store(c + term * kLanes, sum);
              term = entry.term;
              sum = Vector{};
            }
            sum += static_cast<T>(entry.value) * S::load(w + entry.weight * width_);
          }
          if (term >= 0) S::store(c + term * kLanes, sum);
        });
  }

  void row_sources(std::int64_t node, std::int64_t k, const T** rows) const {
    for (std::size_t d = 0; d < sources_.size(); ++d)
      rows[d] = sources_[d].data() + node * program_.inputs * width_ + k;
  }

  void nodewise(const NodeOrder& order) const {
    std::vector<NodeBlock> blocks;
    for (std::int64_t z = 0; z < elements_; ++z) {
      const std::int64_t end = order.first[static_cast<std::size_t>(z) + 1];
      for (std::int64_t i = order.first[static_cast<std::size_t>(z)]; i < end; i += kNodes)
        blocks.push_back({z, i, std::min(end, i + kNodes)});
    }
    const auto count = static_cast<std::int64_t>(blocks.size());
    for_each_tile(count, tile_threads(count, work()), [&](std::int64_t b) {
      const NodeBlock block = blocks[static_cast<std::size_t>(b)];
      Products<T, kOrder> products(program_);
      std::vector<J> gradient(static_cast<std::size_t>(program_.products()));
      std::vector<Single> result(static_cast<std::size_t>(program_.inputs));
      const T* rows[4];
      for (std::int64_t k = 0; k < width_; k += kLanes) {
        const T* const c = coefficients_.data() +
                           (block.element * (width_ / kLanes) + k / kLanes) * term_count() * kLanes;
        for (std::int64_t i = block.begin; i < block.end; ++i) {
          const std::int64_t node = order.nodes[static_cast<std::size_t>(i)];
          row_sources(node, k, rows);
          products.set(rows, width_);
          if (slot_ == ContractionSlot::kG) {
            outputs(products, c, out_.data() + node * program_.outputs * width_ + k);
          } else {
            inputs(products, c, g_.data() + node * program_.outputs * width_ + k, gradient.data(),
                   result.data());
            T* const to = out_.data() + node * program_.inputs * width_ + k;
            for (int j = 0; j < program_.inputs; ++j)
              S::store(to + j * width_, result[static_cast<std::size_t>(j)].part[0]);
          }
        }
      }
    });
  }

  void outputs(const Products<T, kOrder>& p, const T* c, T* out) const {
    int output = 0;
    Vector total{};
    const auto flush = [&](int next) {
      for (; output < next; ++output) {
        S::store(out + output * width_, total);
        total = Vector{};
      }
    };
    for (const auto& group : program_.groups) {
      flush(group.output);
      J sum{};
      for (std::int32_t e = group.begin; e < group.end; ++e) {
        const auto& entry = program_.by_output[static_cast<std::size_t>(e)];
        const Vector factor = S::load(c + entry.term * kLanes);
        const J& product = p.product(entry.q);
        for (unsigned s = 0; s < J::kParts; ++s) sum.part[s] += factor * product.part[s];
      }
      total += top_of_product(sum, p.input(group.k));
    }
    flush(program_.outputs);
  }

  /// Reverse through the products; `gradient` by product, `result` by input.
  void inputs(
      const Products<T, kOrder>& p, const T* c, const T* g, J* gradient, Single* result) const {
    std::fill_n(gradient, program_.products(), J{});
    std::fill_n(result, program_.inputs, Single{});
    Vector outputs[kMaxOutputs];
    for (int i = 0; i < program_.outputs; ++i) outputs[i] = S::load(g + i * width_);
    // Sums stay in registers while k does not change.
    for (auto m = program_.monomials.begin(); m != program_.monomials.end();) {
      const std::int32_t k = m->k;
      const J last = p.input(k);
      Vector sum{};
      for (; m != program_.monomials.end() && m->k == k; ++m) {
        const T* term = c + m->begin * kLanes;
        const auto* output = program_.terms.data() + m->begin;
        Vector factor = S::load(term) * outputs[output->output];
        for (std::int32_t t = m->begin + 1; t < m->end; ++t) {
          term += kLanes;
          ++output;
          factor += S::load(term) * outputs[output->output];
        }
        sum += factor * p.product(m->q).part[J::kTop];
        J& to = gradient[m->q];
        for (unsigned s = 0; s < J::kParts; ++s) to.part[s] += factor * last.part[s];
      }
      result[k].part[0] += sum;
    }
    for (int i = 0; i < program_.inputs; ++i) result[i].part[0] += gradient[1 + i].part[J::kTop];
    const J* next = gradient + 1 + program_.inputs;
    for (const auto& pair : program_.pairs) {
      result[pair.i].part[0] += top_of_product(*next, p.input(pair.j));
      result[pair.j].part[0] += top_of_product(*next, p.input(pair.i));
      ++next;
    }
  }

  /// Sums over the nodes of an element, in their order, by one thread per element and register.
  void weights(const NodeOrder& order) const {
    const std::int64_t registers = width_ / kLanes;
    for_each_tile(
        elements_ * registers, tile_threads(elements_ * registers, work()), [&](std::int64_t tile) {
          const std::int64_t z = tile / registers;
          const std::int64_t k = tile % registers * kLanes;
          std::vector<Single> by_term(program_.terms.size());
          Products<T, kOrder> p(program_);
          const T* rows[4];
          for (std::int64_t i = order.first[static_cast<std::size_t>(z)];
               i < order.first[static_cast<std::size_t>(z) + 1]; ++i) {
            const std::int64_t node = order.nodes[static_cast<std::size_t>(i)];
            row_sources(node, k, rows);
            p.set(rows, width_);
            const T* const g = g_.data() + node * program_.outputs * width_ + k;
            for (const auto& m : program_.monomials) {
              const Vector value = top_of_product(p.product(m.q), p.input(m.k));
              for (std::int32_t t = m.begin; t < m.end; ++t) {
                const auto at = static_cast<std::size_t>(t);
                by_term[at].part[0] += value * S::load(g + program_.terms[at].output * width_);
              }
            }
          }
          std::vector<Single> sums(static_cast<std::size_t>(program_.weights));
          for (const auto& entry : program_.table)
            sums[static_cast<std::size_t>(entry.weight)].part[0] +=
                static_cast<T>(entry.value) * by_term[static_cast<std::size_t>(entry.term)].part[0];
          T* const to = out_.data() + z * program_.weights * width_ + k;
          for (std::int64_t w = 0; w < program_.weights; ++w)
            S::store(to + w * width_, sums[static_cast<std::size_t>(w)].part[0]);
        });
  }

  const ContractionProgram& program_;
  ContractionSlot slot_;
  View species_;
  std::int64_t nodes_, elements_, width_;
  PaddedRows<T> g_, w_;
  std::vector<PaddedRows<T>> sources_;
  PaddedResult<T> out_;
  PoolScratch<T> coefficients_;
};

template <class T>
void run(const SymmetricContraction& c, ContractionSlot slot, const View& out) {
  switch (c.directions.size()) {
    case 0:
      return Contraction<T, 0>(c, slot, out).run();
    case 1:
      return Contraction<T, 1>(c, slot, out).run();
    case 2:
      return Contraction<T, 2>(c, slot, out).run();
    default:
      return Contraction<T, 3>(c, slot, out).run();
  }
}

}  // namespace

void symmetric_contraction(const SymmetricContraction& c, ContractionSlot slot, const View& out) {
  if (c.directions.size() > 3)
    throw NotSupported("symmetric_contraction: more than 3 directions (all such are zero).");
  if (out.dtype != DType::kFloat64 && out.dtype != DType::kFloat32) {
    throw DTypeError(str("symmetric_contraction: element type ", name(out.dtype),
                         " is neither f32 nor f64. Cast it first."));
  }
  if (c.a.empty() || out.empty()) {
    if (!out.empty()) fill(out, 0.0);
    return;
  }
  if (out.dtype == DType::kFloat64) {
    run<double>(c, slot, out);
  } else {
    run<float>(c, slot, out);
  }
}

}  // namespace tessera::kernels
