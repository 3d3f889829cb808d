#pragma once

#include <memory>
#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// What a recurrent cell carries from one step to the next.
struct RecurrentState {
  Tensor hidden;     ///< h, the output
  Tensor cell = {};  ///< c, where the cell has one
};

/// One step of a recurrence, (x_t, state) -> state.
class RecurrentCell : public Module {
 public:
  /// `x` without a time dimension. An undefined state is zero.
  virtual RecurrentState operator()(const Tensor& x, const RecurrentState& state) const = 0;
};

/// Options of LstmCell and GruCell.
struct RecurrentOptions {
  std::int64_t in = 0;
  std::int64_t hidden = 0;
  bool bias = true;
};

/// A cell whose gates are sums of products, of x [..., in] and of h [..., hidden].
class GatedCell : public RecurrentCell {
 public:
  void fields(Fields& f) override;
  std::string describe() const override;

  Parameter weight_ih;  ///< [gates hidden, in]
  Parameter weight_hh;  ///< [gates hidden, hidden]
  Parameter bias_ih;    ///< [gates hidden]
  Parameter bias_hh;    ///< [gates hidden]

 protected:
  /// `name` must live as long as the program.
  GatedCell(const char* name,
            std::int64_t gates,
            const RecurrentOptions& options,
            const Mesh& mesh,
            DType dtype);

 private:
  const char* name_;
};

/// Long short-term memory (Hochreiter & Schmidhuber 1997, with forget gate: Gers et al. 2000) of
/// x [..., in], torch's LSTMCell: with gates in the order i, f, g, o along dimension 0 of the
/// weights,
/// [i | f | g | o] = weight_ih x + bias_ih + weight_hh h + bias_hh,
/// c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
/// Any leading dimension may be split. First values: uniform on +-1 / sqrt(hidden).
class LstmCell : public GatedCell {
 public:
  /// Throws UsageError unless `in` and `hidden` are positive.
  LstmCell(const RecurrentOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  RecurrentState operator()(const Tensor& x, const RecurrentState& state) const override;
};

/// Gated recurrent unit (Cho et al. 2014) of x [..., in], torch's GRUCell: with gates in the order
/// r, z, n along dimension 0 of the weights, [r | z | n]_x = weight_ih x + bias_ih,
/// [r | z | n]_h = weight_hh h + bias_hh, r = sigmoid(r_x + r_h), z = sigmoid(z_x + z_h),
/// n = tanh(n_x + r n_h), h' = (1 - z) n + z h. Layouts and first values as LstmCell.
class GruCell : public GatedCell {
 public:
  /// Throws UsageError unless `in` and `hidden` are positive.
  GruCell(const RecurrentOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  RecurrentState operator()(const Tensor& x, const RecurrentState& state) const override;
};

/// Options of ConvLstmCell.
struct ConvLstmOptions {
  int dims = 2;  ///< domain dimensions, 1 to 3
  std::int64_t in = 0;
  std::int64_t hidden = 0;
  Dims kernel = {3};
  std::vector<EdgeRule> edges = {};  ///< as ConvLayerOptions
  bool bias = true;
};

/// Convolutional LSTM (Shi et al. 2015, without peepholes) of x [N, domain..., in]: as LstmCell,
/// with one convolution of [x | h] that keeps the size in place of the products: weight
/// [4 hidden, kernel..., in + hidden], gates in the order i, f, g, o. The domain may be split: each
/// step exchanges the halos of x and h once.
class ConvLstmCell : public RecurrentCell {
 public:
  /// Throws UsageError for sizes that are not positive or lists of a wrong length.
  ConvLstmCell(const ConvLstmOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  RecurrentState operator()(const Tensor& x, const RecurrentState& state) const override;
  std::string describe() const override;

  Conv gates;
};

/// What unroll() returns.
struct Unrolled {
  Tensor output;         ///< h of every step, [N, T, ..., hidden]
  RecurrentState state;  ///< after the last
};

/// Runs a cell over dimension 1 of x [N, T, ..., in], in ascending order. Time may not be split
/// (LayoutError): a step needs the one before. Throws ShapeError where there is no step.
Unrolled unroll(const RecurrentCell& cell, const Tensor& x, const RecurrentState& state = {});

/// A cell over time as a layer: x [N, T, ..., in] -> h [N, T, ..., hidden], or h of the last step
/// alone, [N, ..., hidden].
class Recurrent : public Layer {
 public:
  template <class Cell>
  requires std::derived_from<Cell, RecurrentCell>
  explicit Recurrent(Cell cell, bool last_only = false)
      : cell_(std::make_unique<Cell>(std::move(cell))), last_only_(last_only) {}
  void fields(Fields& f) override { f("cell", cell_); }
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override { return "Recurrent"; }

 private:
  std::unique_ptr<RecurrentCell> cell_;
  bool last_only_;
};

}  // namespace tessera::nn
