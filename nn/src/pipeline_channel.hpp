#pragma once

#include <map>
#include <tessera/core/tensor.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tuple>
#include <vector>

namespace tessera::nn {

/// What has to be known of a tensor to receive it.
struct TensorInfo {
  Layout layout;
  DType dtype = DType::kFloat32;
  bool gradient = false;  ///< whether one flows back

  /// All of it but the mesh, which differs from stage to stage.
  void write(std::vector<std::int64_t>& to) const;
  static TensorInfo read(const std::int64_t*& from, const Mesh& mesh);
};

/// Tensors on their way between the parts of a pipeline: values into part p (from p - 1), and their
/// gradients back. Each rank sends its own piece to the rank at its place in the other stage.
///
/// What a part gets depends on what the whole pipeline gets (`key`) alone; so a description travels
/// once per key, before the first values, and never again.
class PipelineChannel {
 public:
  explicit PipelineChannel(const parallel::Group& stages) : stages_(stages) {}

  void send_values(int part, int m, const TensorInfo& key, const std::vector<Tensor>& values);
  /// Starts to receive where what comes is known, and says so.
  bool expect_values(int part, int m, const TensorInfo& key);
  /// Leaves, where gradients flow back.
  std::vector<Tensor> take_values(int part, int m, const TensorInfo& key, const Mesh& mesh);

  void send_gradients(int part, int m, const std::vector<Tensor>& gradients);
  /// `values`: those sent into the part that have gradients.
  void expect_gradients(int part, int m, const std::vector<Tensor>& values);
  /// One for each.
  std::vector<Tensor> take_gradients(int part, int m, const std::vector<Tensor>& values);

 private:
  enum Kind { kValues, kGradients, kSize, kDescription };
  using Key = std::tuple<Kind, int, int>;  // part, micro-batch
  struct Arrival {
    std::vector<Tensor> tensors;
    std::vector<parallel::Request> requests = {};
  };
  using Known = std::map<std::vector<std::int64_t>, std::vector<TensorInfo>>;

  int process_of(int part) const { return stages_.process_of(part % stages_.size()); }
  void send(Kind kind, int part, int m, const std::vector<Tensor>& tensors);
  void receive(Kind kind, int part, int m, std::vector<Tensor> tensors);
  std::vector<Tensor> take(Kind kind, int part, int m);
  void receive_values(int part, int m, const std::vector<TensorInfo>& infos);

  parallel::Group stages_;
  std::map<Key, Arrival> arrivals_;
  std::map<int, Known> known_;  // by part
};

}  // namespace tessera::nn
