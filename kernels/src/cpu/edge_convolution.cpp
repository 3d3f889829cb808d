// The convolution over edges and all derivatives of its form. Edges are taken in blocks of whole
// receivers (at most kBlock edges at once); per block and path the radial factors are one small
// matrix product in cache, used by `edge_paths`, and forgotten.

#include <algorithm>
#include <cmath>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/equivariant.hpp>
#include <vector>

#include "cpu/batch_gemm.hpp"
#include "cpu/edge_blocks.hpp"
#include "cpu/edge_paths.hpp"
#include "cpu/padded_rows.hpp"
#include "cpu/tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

constexpr std::int64_t kBlock = 96;
/// Blocks in work per thread before their contributions to senders and weights are added.
constexpr std::int64_t kBlocksPerThread = 4;

std::vector<std::int32_t> local_indices(const char* what,
                                        const View& index,
                                        std::int64_t origin,
                                        std::int64_t rows) {
  const std::int64_t count = index.shape[0];
  std::vector<std::int32_t> result(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = i * index.strides[0];
    const std::int64_t global =
        index.dtype == DType::kInt64 ? index.as<std::int64_t>()[at] : index.as<std::int32_t>()[at];
    if (global < origin || global >= origin + rows) {
      throw ShapeError(str("equivariant_convolution: ", what, " ", global, " of edge ", i,
                           " of this rank is outside its ", rows, " rows from ", origin,
                           ". Keep edges with their receiver, and give each sender a row there."));
    }
    result[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(global - origin);
  }
  return result;
}

/// An element c * y[b] of the matrix of a path.
template <class T>
struct MatrixEntry {
  std::int32_t at;  ///< a * (2 l3 + 1) + c
  std::int32_t y;   ///< l2 l2 + b
  T value;
};

template <class T>
struct PathTable {
  TensorPath path;
  std::int64_t size;  ///< (2 l1 + 1) (2 l3 + 1)
  std::vector<MatrixEntry<T>> entries;
};

template <class T>
std::vector<PathTable<T>> path_tables(const TensorPaths& paths) {
  std::vector<PathTable<T>> tables;
  for (const TensorPath& p : paths.paths) {
    PathTable<T> table{p, (2 * p.l1 + 1) * (2 * p.l3 + 1), {}};
    const std::vector<double>& c = wigner_3j(p.l1, p.l2, p.l3);
    const double scale = std::sqrt(2.0 * p.l3 + 1.0);
    std::size_t i = 0;
    for (int a = 0; a <= 2 * p.l1; ++a)
      for (int b = 0; b <= 2 * p.l2; ++b)
        for (int k = 0; k <= 2 * p.l3; ++k, ++i)
          if (c[i] != 0.0)
            table.entries.push_back(
                {a * (2 * p.l3 + 1) + k, p.l2 * p.l2 + b, static_cast<T>(scale * c[i])});
    tables.push_back(std::move(table));
  }
  return tables;
}

template <class T>
class Convolution {
 public:
  Convolution(const EdgeConvolution& c, const EdgeConvolutionGradients& out)
      : c_(c),
        edges_(c.senders.shape[0]),
        channels_(c.channels),
        width_(round_up(c.channels, kVectorLanes<T>)),
        vectors_(width_ / kVectorLanes<T> % 2 == 0 ? 2 : 1),
        hidden_((c.h.data != nullptr ? c.h : out.h).shape[1]),
        hidden_width_(round_up(hidden_, kVectorLanes<T>)),
        hidden_vectors_(hidden_width_ / kVectorLanes<T> % 2 == 0 ? 2 : 1),
        columns_(c.paths->count() * width_),
        u_row_((c.paths->l_in + 1) * (c.paths->l_in + 1) * width_),
        g_row_(c.paths->rows * width_),
        table_(c.first_row.data != nullptr),
        tables_(path_tables<T>(*c.paths)),
        g_(c.g, channels_, width_),
        u_(c.u, channels_, width_),
        y_(c.y, c.y.data == nullptr ? 1 : c.y.shape[1], c.y.data == nullptr ? 1 : c.y.shape[1]),
        h_(c.h, c.h.data == nullptr ? 1 : hidden_, c.h.data == nullptr ? 1 : hidden_),
        w_(c.w, channels_, width_),
        out_g_(out.g, channels_, width_),
        out_u_(out.u, channels_, width_),
        out_y_(out.y, y_columns(out), y_columns(out)),
        out_h_(out.h, out.h.data == nullptr ? 1 : hidden_, out.h.data == nullptr ? 1 : hidden_),
        out_w_(out.w, channels_, width_) {
    for (const PathTable<T>& t : tables_) {
      matrix_offset_.push_back(matrix_size_);
      matrix_size_ += t.size;
      most_matrix_ = std::max(most_matrix_, t.size);
    }
    need_radial_grad_ = out_h_.data() != nullptr || out_w_.data() != nullptr;
    backward_ = need_radial_grad_ || out_u_.data() != nullptr || out_y_.data() != nullptr;
    need_radial_ = out_g_.data() != nullptr || out_u_.data() != nullptr || out_y_.data() != nullptr;
    need_matrix_ = out_g_.data() != nullptr || out_u_.data() != nullptr || need_radial_grad_;
    grad_row_ = (out_w_.data() != nullptr ? columns_ : width_) + kVectorLanes<T>;
  }

  void run() {
    const int threads = thread_count();
    if (!dry_run()) {
      senders_ = local_indices("sender", c_.senders, c_.sender_origin, c_.row_count);
      receivers_ = local_indices("receiver", c_.receivers, c_.receiver_origin, c_.node_count);
      if (!std::is_sorted(receivers_.begin(), receivers_.end())) {
        throw ShapeError(
            "equivariant_convolution: receivers are not in ascending order. Sort the edges by "
            "receiver.");
      }
      if (table_) read_first_rows();
    }
    cut(threads);
    pack_weights();
    const PoolScratch<T> memory(most_slots_ * slot_size());
    if (dry_run()) return;
    out_g_.clear();
    out_u_.clear();
    out_w_.clear();
    pointers_.resize(static_cast<std::size_t>(most_slots_));
    const std::int64_t block_work = kBlock * (hidden_ + 8) * columns_;
    bool awaits = static_cast<bool>(c_.arrived);
    for (std::size_t first = 0; first < tasks_.size();) {
      if (awaits && first >= early_tasks_) {
        c_.arrived();
        awaits = false;
      }
      const std::size_t most = awaits ? early_tasks_ : tasks_.size();
      // The blocks that fit into the slots; which ones does not change a bit of the result.
      std::size_t last = first + 1;
      const std::int64_t origin = tasks_[first].begin;
      while (last < most && tasks_[last].end - origin <= most_slots_) ++last;
      const auto count = static_cast<std::int64_t>(last - first);
      for_each_tile(count, tile_threads(count, static_cast<double>(count * block_work)),
                    [&](std::int64_t i) {
                      const Range task = tasks_[first + static_cast<std::size_t>(i)];
                      for (std::int64_t b = task.begin; b < task.end; ++b)
                        run_block(b, b - origin, memory.data() + (b - origin) * slot_size());
                    });
      add_blocks({origin, tasks_[last - 1].end}, memory.data(), threads);
      first = last;
    }
    if (awaits) c_.arrived();
    out_g_.finish();
    out_u_.finish();
    out_y_.finish();
    out_h_.finish();
    out_w_.finish();
  }

 private:
  static std::int64_t y_columns(const EdgeConvolutionGradients& out) {
    return out.y.data == nullptr ? 1 : out.y.shape[1];
  }

  /// Where the arrays of a block lie in its slot.
  std::int64_t at_radial() const { return round_up(kBlock * matrix_size_, kPad); }
  std::int64_t at_grad() const {
    return at_radial() + (need_radial_ ? round_up(kBlock * width_, kPad) : 0);
  }
  std::int64_t at_matrix_grad() const {
    return at_grad() + (need_radial_grad_ ? round_up(kBlock * grad_row_, kPad) : 0);
  }
  std::int64_t at_hidden() const {
    return at_matrix_grad() +
           (out_y_.data() != nullptr ? round_up(kBlock * most_matrix_, kPad) : 0);
  }
  std::int64_t at_senders() const {
    return at_hidden() + (out_h_.data() != nullptr ? round_up(kBlock * hidden_width_, kPad) : 0);
  }
  std::int64_t slot_size() const {
    return at_senders() + (out_u_.data() != nullptr ? kBlock * u_row_ : 0);
  }

  void read_first_rows() {
    const std::int64_t rows = (c_.w.data != nullptr ? c_.w.shape[0] : 0);
    first_rows_.resize(static_cast<std::size_t>(edges_));
    for (std::int64_t e = 0; e < edges_; ++e) {
      const std::int64_t at = e * c_.first_row.strides[0];
      const std::int64_t row = c_.first_row.dtype == DType::kInt64
                                   ? c_.first_row.as<std::int64_t>()[at]
                                   : c_.first_row.as<std::int32_t>()[at];
      if (row < 0 || (c_.w.data != nullptr && row + hidden_ > rows)) {
        throw ShapeError(str("equivariant_convolution: edge ", e, " needs rows ", row, " to ",
                             row + hidden_, " of a table of ", rows, "."));
      }
      first_rows_[static_cast<std::size_t>(e)] = row;
    }
  }

  /// Blocks of at most kBlock edges; early tasks need no rows that have not arrived.
  void cut(int threads) {
    EdgeBlocks cut(senders_, receivers_, kBlock, static_cast<bool>(c_.arrived), c_.own_rows);
    const bool stored = out_u_.data() != nullptr || out_w_.data() != nullptr;
    most_slots_ =
        std::max(cut.most_blocks, threads == 1 && stored ? 1 : kBlocksPerThread * threads);
    blocks_ = std::move(cut.blocks);
    tasks_ = std::move(cut.tasks);
    early_tasks_ = cut.early_tasks;
  }

  /// Weights as panels of registers: [path, panel][hidden][vectors * lanes] for the radial factors,
  /// [hidden panel][path * width][vectors * lanes] for the gradient by h.
  void pack_weights() {
    if (table_ || c_.w.data == nullptr) return;
    const std::int64_t panel = vectors_ * kVectorLanes<T>;
    if (need_radial_) {
      panels_ = PoolScratch<T>(hidden_ * columns_);
      if (!dry_run()) {
        T* to = panels_.data();
        for (std::int64_t k = 0; k < columns_; k += panel)
          for (std::int64_t j = 0; j < hidden_; ++j, to += panel)
            std::copy_n(w_.data() + j * columns_ + k, panel, to);
      }
    }
    if (out_h_.data() != nullptr) {
      const std::int64_t h_panel = hidden_vectors_ * kVectorLanes<T>;
      hidden_panels_ = PoolScratch<T>(hidden_width_ * columns_);
      if (!dry_run()) {
        T* to = hidden_panels_.data();
        for (std::int64_t j = 0; j < hidden_width_; j += h_panel)
          for (std::int64_t k = 0; k < columns_; ++k)
            for (std::int64_t i = 0; i < h_panel; ++i)
              *to++ = j + i < hidden_ ? w_.data()[(j + i) * columns_ + k] : T(0);
      }
    }
  }

  void run_block(std::int64_t index, std::int64_t slot, T* memory) {
    const Range block = blocks_[static_cast<std::size_t>(index)];
    const std::int64_t n = block.size();
    T* const matrices = memory;
    T* const radial = memory + at_radial();
    T* const hidden = memory + at_hidden();
    T* const sender_grad = memory + at_senders();
    Pointers& p = pointers_[static_cast<std::size_t>(slot)];
    p.u.resize(static_cast<std::size_t>(n));
    p.g = p.u;
    p.out_g.resize(static_cast<std::size_t>(n));
    for (std::int64_t e = 0; e < n; ++e) {
      const auto i = static_cast<std::size_t>(e);
      const auto global = static_cast<std::size_t>(block.begin + e);
      if (u_.data() != nullptr) p.u[i] = u_.data() + senders_[global] * u_row_;
      if (g_.data() != nullptr) p.g[i] = g_.data() + receivers_[global] * g_row_;
      if (out_g_.data() != nullptr) p.out_g[i] = out_g_.data() + receivers_[global] * g_row_;
    }
    if (need_matrix_) fill_matrices(block, matrices);
    if (out_u_.data() != nullptr) std::fill_n(sender_grad, n * u_row_, T(0));
    if (out_y_.data() != nullptr)
      std::fill_n(out_y_.data() + block.begin * y_size(), n * y_size(), T(0));
    if (out_h_.data() != nullptr && table_)
      std::fill_n(out_h_.data() + block.begin * hidden_, n * hidden_, T(0));

    PathBlock<T> work;
    work.edges = n;
    work.stride = width_;
    work.vectors = vectors_;
    work.radial = radial;
    work.u = p.u.data();
    work.g = p.g.data();
    work.out_g = p.out_g.data();
    for (std::size_t path = 0; path < tables_.size(); ++path) {
      const PathTable<T>& t = tables_[path];
      const auto column = static_cast<std::int64_t>(path) * width_;
      if (need_radial_) fill_radial(block, column, radial);
      work.matrix = matrices + matrix_offset_[path] * n;
      work.u_offset = t.path.l1 * t.path.l1 * width_;
      work.g_offset = t.path.row * width_;
      if (out_g_.data() != nullptr) path_forward(t.path.l1, t.path.l3, work);
      if (!backward_) continue;
      work.grad_u = out_u_.data() != nullptr ? sender_grad : nullptr;
      work.grad_u_row = u_row_;
      work.grad_radial = need_radial_grad_
                             ? memory + at_grad() + (out_w_.data() != nullptr ? column : 0)
                             : nullptr;
      work.grad_radial_row = grad_row_;
      work.grad_matrix = out_y_.data() != nullptr ? memory + at_matrix_grad() : nullptr;
      path_backward(t.path.l1, t.path.l3, work);
      if (out_y_.data() != nullptr) add_harmonics(block, t, work.grad_matrix);
      if (out_h_.data() != nullptr) add_hidden(block, column, work.grad_radial, hidden);
    }
    if (out_h_.data() != nullptr && !table_) {
      for (std::int64_t e = 0; e < n; ++e)
        std::copy_n(hidden + e * hidden_width_, hidden_,
                    out_h_.data() + (block.begin + e) * hidden_);
    }
  }

  std::int64_t y_size() const { return (c_.paths->l_edge + 1) * (c_.paths->l_edge + 1); }

  void fill_matrices(Range block, T* matrices) const {
    for (const PathTable<T>& t : tables_) {
      std::fill_n(matrices, block.size() * t.size, T(0));
      for (std::int64_t e = block.begin; e < block.end; ++e, matrices += t.size) {
        const T* const y = y_.data() + e * y_size();
        for (const MatrixEntry<T>& entry : t.entries)
          matrices[entry.at] += entry.value * y[entry.y];
      }
    }
  }

  void add_harmonics(Range block, const PathTable<T>& t, const T* gradient) const {
    for (std::int64_t e = block.begin; e < block.end; ++e, gradient += t.size) {
      T* const y = out_y_.data() + e * y_size();
      for (const MatrixEntry<T>& entry : t.entries) y[entry.y] += entry.value * gradient[entry.at];
    }
  }

  /// radial[panel][edge][...] of one path, whose weights start at `column`.
  void fill_radial(Range block, std::int64_t column, T* radial) const {
    using S = Simd<T>;
    const std::int64_t panel = vectors_ * kVectorLanes<T>;
    if (table_) {
      // Rows of the table are read along, as memory is fetched.
      for (std::int64_t e = 0; e < block.size(); ++e) {
        const auto global = static_cast<std::size_t>(block.begin + e);
        const T* const h = h_.data() + (block.begin + e) * hidden_;
        const T* const w = w_.data() + first_rows_[global] * columns_ + column;
        for (std::int64_t k = 0; k < width_; k += panel) {
          T* const to = radial + k * block.size() + e * panel;
          for (std::int64_t v = 0; v < panel; v += kVectorLanes<T>) {
            typename S::Type sum{};
            for (std::int64_t j = 0; j < hidden_; ++j)
              sum += h[j] * S::load(w + j * columns_ + k + v);
            S::store(to + v, sum);
          }
        }
      }
      return;
    }
    BatchGemm<T> gemm;
    const std::int64_t zero = 0;
    gemm.a_offset = gemm.b_offset = &zero;
    gemm.batch = 1;
    gemm.depth = hidden_;
    gemm.a_row = hidden_;
    gemm.b_col = gemm.c_row = panel;
    for (std::int64_t k = 0; k < width_; k += panel, radial += panel * block.size()) {
      gemm.b = panels_.data() + (column + k) * hidden_;
      for_row_blocks(block.size(), max_gemm_rows(vectors_), [&](std::int64_t first, int rows) {
        gemm.a = h_.data() + (block.begin + first) * hidden_;
        gemm.c = radial + first * panel;
        batch_gemm(gemm, vectors_, rows);
      });
    }
  }

  /// The gradient by h from that by the radial factors of one path.
  void add_hidden(Range block, std::int64_t column, const T* gradient, T* hidden) const {
    using S = Simd<T>;
    if (table_) {
      for (std::int64_t e = block.begin; e < block.end; ++e, gradient += grad_row_) {
        const T* const w = w_.data() + first_rows_[static_cast<std::size_t>(e)] * columns_ + column;
        T* const to = out_h_.data() + e * hidden_;
        std::int64_t j = 0;
        for (; j + 4 <= hidden_; j += 4) {
          typename S::Type sum[4] = {};
          for (std::int64_t k = 0; k < width_; k += kVectorLanes<T>) {
            const typename S::Type g = S::load(gradient + k);
            for (int i = 0; i < 4; ++i) sum[i] += g * S::load(w + (j + i) * columns_ + k);
          }
          for (int i = 0; i < 4; ++i) to[j + i] += S::sum(sum[i]);
        }
        for (; j < hidden_; ++j) {
          typename S::Type sum{};
          for (std::int64_t k = 0; k < width_; k += kVectorLanes<T>)
            sum += S::load(gradient + k) * S::load(w + j * columns_ + k);
          to[j] += S::sum(sum);
        }
      }
      return;
    }
    const std::int64_t panel = hidden_vectors_ * kVectorLanes<T>;
    BatchGemm<T> gemm;
    const std::int64_t zero = 0;
    gemm.a_offset = gemm.b_offset = &zero;
    gemm.batch = 1;
    gemm.depth = width_;
    gemm.a_row = grad_row_;
    gemm.b_col = panel;
    gemm.c_row = hidden_width_;
    gemm.accumulate = column > 0;
    for (std::int64_t j = 0; j < hidden_width_; j += panel) {
      gemm.b = hidden_panels_.data() + j * columns_ + column * panel;
      for_row_blocks(block.size(), max_gemm_rows(hidden_vectors_),
                     [&](std::int64_t first, int rows) {
                       gemm.a = gradient + first * grad_row_;
                       gemm.c = hidden + first * hidden_width_ + j;
                       batch_gemm(gemm, hidden_vectors_, rows);
                     });
    }
  }

  /// What several blocks add to one row: gradients by u and w, in the order of the edges whatever
  /// the number of threads, which share columns.
  void add_blocks(Range blocks, const T* memory, int threads) const {
    constexpr std::int64_t kColumns = 128;
    if (out_u_.data() != nullptr) {
      const std::int64_t tiles = threads == 1 ? 1 : (u_row_ + kColumns - 1) / kColumns;
      const std::int64_t columns = threads == 1 ? u_row_ : kColumns;
      for_each_tile(tiles, threads, [&](std::int64_t tile) {
        const std::int64_t begin = tile * columns;
        const std::int64_t end = std::min(u_row_, begin + columns);
        for (std::int64_t b = blocks.begin; b < blocks.end; ++b) {
          const Range block = blocks_[static_cast<std::size_t>(b)];
          const T* from = memory + (b - blocks.begin) * slot_size() + at_senders();
          for (std::int64_t e = block.begin; e < block.end; ++e, from += u_row_) {
            T* const to = out_u_.data() + senders_[static_cast<std::size_t>(e)] * u_row_;
#pragma omp simd
            for (std::int64_t i = begin; i < end; ++i) to[i] += from[i];
          }
        }
      });
    }
    if (out_w_.data() != nullptr) {
      const std::int64_t panel = vectors_ * kVectorLanes<T>;
      for_each_tile(columns_ / panel, threads, [&](std::int64_t tile) {
        for (std::int64_t b = blocks.begin; b < blocks.end; ++b) {
          const Range block = blocks_[static_cast<std::size_t>(b)];
          const T* gradient = memory + (b - blocks.begin) * slot_size() + at_grad() + tile * panel;
          add_weights(block, gradient, tile * panel);
        }
      });
    }
  }

  void add_weights(Range block, const T* gradient, std::int64_t column) const {
    using S = Simd<T>;
    const std::int64_t panel = vectors_ * kVectorLanes<T>;
    if (table_) {
      for (std::int64_t e = block.begin; e < block.end; ++e, gradient += grad_row_) {
        T* const w = out_w_.data() + first_rows_[static_cast<std::size_t>(e)] * columns_ + column;
        for (std::int64_t j = 0; j < hidden_; ++j) {
          const T h = h_.data()[e * hidden_ + j];
          for (std::int64_t v = 0; v < panel; v += kVectorLanes<T>) {
            T* const to = w + j * columns_ + v;
            S::store(to, S::load(to) + h * S::load(gradient + v));
          }
        }
      }
      return;
    }
    BatchGemm<T> gemm;
    const std::int64_t zero = 0;
    gemm.a_offset = gemm.b_offset = &zero;
    gemm.batch = 1;
    gemm.depth = block.size();
    gemm.a_row = 1;
    gemm.a_col = hidden_;
    gemm.b = gradient;
    gemm.b_col = grad_row_;
    gemm.c_row = columns_;
    gemm.accumulate = true;
    for_row_blocks(hidden_, max_gemm_rows(vectors_), [&](std::int64_t first, int rows) {
      gemm.a = h_.data() + block.begin * hidden_ + first;
      gemm.c = out_w_.data() + first * columns_ + column;
      batch_gemm(gemm, vectors_, rows);
    });
  }

  struct Pointers {
    std::vector<const T*> u, g;
    std::vector<T*> out_g;
  };
  static constexpr std::int64_t kPad = 64 / static_cast<std::int64_t>(sizeof(T));

  const EdgeConvolution& c_;
  std::int64_t edges_, channels_, width_;
  int vectors_;
  std::int64_t hidden_, hidden_width_;
  int hidden_vectors_;
  std::int64_t columns_, u_row_, g_row_;
  bool table_;
  std::vector<PathTable<T>> tables_;
  PaddedRows<T> g_, u_, y_, h_, w_;
  PaddedResult<T> out_g_, out_u_, out_y_, out_h_, out_w_;
  std::vector<std::int64_t> matrix_offset_;
  std::int64_t matrix_size_ = 0, most_matrix_ = 0, grad_row_ = 0;
  bool need_radial_grad_ = false, backward_ = false, need_radial_ = false, need_matrix_ = false;
  std::vector<std::int32_t> senders_, receivers_;
  std::vector<std::int64_t> first_rows_;
  std::vector<Range> blocks_, tasks_;
  std::size_t early_tasks_ = 0;  // that read no ghosts
  std::int64_t most_slots_ = 1;
  PoolScratch<T> panels_, hidden_panels_;
  std::vector<Pointers> pointers_;
};

std::int64_t lanes_of(DType dtype) {
  return dtype == DType::kFloat64 ? kVectorLanes<double> : kVectorLanes<float>;
}

}  // namespace

void edge_convolution(const EdgeConvolution& call, const EdgeConvolutionGradients& out) {
  EdgeConvolution checked = call;
  const EdgeConvolution& c = checked;
  // Sums over edges of several receivers keep their order, and rows that must be copied wait.
  const bool ahead = out.u.data == nullptr && out.y.data == nullptr && out.h.data == nullptr &&
                     out.w.data == nullptr && c.u.is_dense() && c.senders.shape[0] > 0 &&
                     c.channels % lanes_of(c.u.dtype) == 0;
  if (c.arrived && !ahead) {
    c.arrived();
    checked.arrived = nullptr;
  }
  const TensorPaths& paths = *c.paths;
  if (paths.l_in > kMaxPathL || paths.l_out > kMaxPathL) {
    throw NotSupported(str("equivariant_convolution: features up to l = ", paths.l_in,
                           " into l = ", paths.l_out, " (compiled are l <= ", kMaxPathL, ")."));
  }
  for (const View* view : {&c.g, &c.u, &c.y, &c.h, &c.w, &out.g, &out.u, &out.y, &out.h, &out.w}) {
    if (view->data == nullptr) continue;
    if (view->dtype == DType::kFloat64 || view->dtype == DType::kFloat32) continue;
    throw DTypeError(str("equivariant_convolution: element type ", name(view->dtype),
                         " is neither f32 nor f64. Cast it first."));
  }
  if (c.senders.shape[0] == 0) {
    for (const View* view : {&out.g, &out.u, &out.y, &out.h, &out.w})
      if (view->data != nullptr) fill(*view, 0.0);
    return;
  }
  const DType dtype = (c.h.data != nullptr ? c.h : out.h).dtype;
  if (dtype == DType::kFloat64) {
    Convolution<double>(c, out).run();
  } else {
    Convolution<float>(c, out).run();
  }
}

double edge_convolution_cost(const EdgeConvolution& c, const EdgeConvolutionGradients& out) {
  if (c.senders.shape[0] == 0) return 0.0;
  const auto edges = static_cast<double>(c.senders.shape[0]);
  const auto channels = static_cast<double>(c.channels);
  const auto hidden = static_cast<double>((c.h.data != nullptr ? c.h : out.h).shape[1]);
  double matrices = 0.0;
  double features = 0.0;
  for (const TensorPath& p : c.paths->paths) {
    matrices += (2 * p.l1 + 1) * (2 * p.l3 + 1);
    features += 2 * p.l1 + 1;
  }
  const double product = 2.0 * hidden * static_cast<double>(c.paths->count());
  const auto wanted = [](const View& view) { return view.data != nullptr; };
  double total = 0.0;
  if (wanted(out.g) || wanted(out.u) || wanted(out.y)) total += product;
  if (wanted(out.g)) total += 2.0 * matrices + features;
  if (wanted(out.y)) total += 2.0 * matrices + features;
  if (wanted(out.u) || wanted(out.h) || wanted(out.w)) total += 2.0 * matrices;
  if (wanted(out.u)) total += 2.0 * features;
  if (wanted(out.h) || wanted(out.w)) total += 2.0 * features;
  if (wanted(out.h)) total += product;
  if (wanted(out.w)) total += product;
  return edges * channels * total;
}

}  // namespace tessera::kernels
