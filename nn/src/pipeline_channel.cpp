#include "pipeline_channel.hpp"

#include <tessera/autograd/autograd.hpp>

#include "dense.hpp"

namespace tessera::nn {
namespace {

/// Tensors that may travel between two parts, for message tags.
constexpr int kMaxTensors = 64;
/// Keys whose descriptions are remembered; both ends forget at the same moment.
constexpr std::size_t kMaxKeys = 256;

std::vector<std::int64_t> described(const TensorInfo& info) {
  std::vector<std::int64_t> numbers;
  info.write(numbers);
  return numbers;
}

/// Numbers as a tensor of this process alone, and back.
Tensor to_tensor(std::vector<std::int64_t> numbers) {
  const Shape shape = {static_cast<std::int64_t>(numbers.size())};
  return Tensor::from_local(View::dense(numbers.data(), DType::kInt64, shape),
                            Layout::replicated(Mesh::self(), shape));
}

std::vector<std::int64_t> numbers_of(const Tensor& t) {
  const auto* const first = t.local().as<const std::int64_t>();
  return {first, first + t.numel()};
}

}  // namespace

void TensorInfo::write(std::vector<std::int64_t>& to) const {
  to.push_back(static_cast<std::int64_t>(dtype));
  to.push_back(gradient ? 1 : 0);
  to.push_back(layout.dims());
  for (int d = 0; d < layout.dims(); ++d) {
    const DimSplit& split = layout.split(d);
    to.push_back(layout.shape()[d]);
    to.push_back(static_cast<std::int64_t>(split.axes.size()));
    to.insert(to.end(), split.axes.begin(), split.axes.end());
    to.push_back(static_cast<std::int64_t>(split.bounds.size()));
    to.insert(to.end(), split.bounds.begin(), split.bounds.end());
  }
}

TensorInfo TensorInfo::read(const std::int64_t*& from, const Mesh& mesh) {
  TensorInfo info;
  info.dtype = static_cast<DType>(*from++);
  info.gradient = *from++ != 0;
  const auto dims = static_cast<std::size_t>(*from++);
  Shape shape;
  std::vector<DimSplit> splits(dims);
  for (DimSplit& split : splits) {
    shape.push_back(*from++);
    for (std::int64_t axes = *from++; axes > 0; --axes)
      split.axes.push_back(static_cast<int>(*from++));
    const std::int64_t bounds = *from++;
    split.bounds.assign(from, from + bounds);
    from += bounds;
  }
  info.layout = Layout::make(mesh, shape, std::move(splits));
  return info;
}

void PipelineChannel::send(Kind kind, int part, int m, const std::vector<Tensor>& tensors) {
  const int peer = process_of(kind == kGradients ? part - 1 : part);
  if (stages_.size() == 1) {
    Arrival& arrival = arrivals_[{kind, part, m}];
    for (const Tensor& t : tensors) arrival.tensors.push_back(t.detach());
    return;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (t.local().empty()) continue;
    const Tensor held = dense(t);
    const int tag = (part * 4 + kind) * kMaxTensors + static_cast<int>(i);
    parallel::isend(held.local().data, held.local_bytes(), peer, tag,
                    {"pipeline", t.layout(), t.device()})
        .keep(held.buffer());
  }
}

void PipelineChannel::receive(Kind kind, int part, int m, std::vector<Tensor> tensors) {
  const int peer = process_of(kind == kGradients ? part : part - 1);
  Arrival& arrival = arrivals_[{kind, part, m}];
  arrival.tensors = std::move(tensors);
  for (std::size_t i = 0; i < arrival.tensors.size(); ++i) {
    const Tensor& t = arrival.tensors[i];
    if (t.local().empty()) continue;
    const int tag = (part * 4 + kind) * kMaxTensors + static_cast<int>(i);
    arrival.requests.push_back(parallel::irecv(t.mutable_local().data, t.local_bytes(), peer, tag,
                                               {"pipeline", t.layout(), t.device()}));
    arrival.requests.back().keep(t.buffer());
  }
}

std::vector<Tensor> PipelineChannel::take(Kind kind, int part, int m) {
  const auto it = arrivals_.find({kind, part, m});
  Arrival arrival = std::move(it->second);
  arrivals_.erase(it);
  parallel::wait_all(arrival.requests);
  return std::move(arrival.tensors);
}

void PipelineChannel::send_values(int part,
                                  int m,
                                  const TensorInfo& key,
                                  const std::vector<Tensor>& values) {
  if (values.size() > kMaxTensors || ((part + 1) * 4) * kMaxTensors > parallel::kMaxTag) {
    throw NotSupported(str("pipeline: ", values.size(), " tensors into part ", part, " (at most ",
                           kMaxTensors,
                           " tensors between two parts, and 2046 parts). Join "
                           "tensors, or use fewer parts."));
  }
  std::vector<TensorInfo> infos;
  std::vector<std::int64_t> text;
  for (const Tensor& t : values) {
    infos.push_back({t.layout(), t.dtype(), requires_grad(t)});
    infos.back().write(text);
  }
  Known& known = known_[part];
  const std::vector<std::int64_t> of = described(key);
  if (const auto it = known.find(of); it == known.end()) {
    if (known.size() >= kMaxKeys) known.clear();
    known[of] = std::move(infos);
    if (stages_.size() > 1) {
      send(kSize, part, m, {to_tensor({static_cast<std::int64_t>(text.size())})});
      send(kDescription, part, m, {to_tensor(text)});
    }
  } else {
    std::vector<std::int64_t> before;
    for (const TensorInfo& info : it->second) info.write(before);
    if (before != text) {
      throw NotSupported(str("pipeline: what goes into part ", part,
                             " has another size or layout than before for the same input of the "
                             "pipeline (sizes may depend on layouts only). Cut the model where "
                             "they do."));
    }
  }
  send(kValues, part, m, values);
}

bool PipelineChannel::expect_values(int part, int m, const TensorInfo& key) {
  if (stages_.size() == 1 || arrivals_.contains({kValues, part, m})) return true;
  const Known& known = known_[part];
  const auto it = known.find(described(key));
  // Where the next new key makes both ends forget, what is known now may not be then.
  if (it == known.end() || known.size() >= kMaxKeys) return false;
  receive_values(part, m, it->second);
  return true;
}

void PipelineChannel::receive_values(int part, int m, const std::vector<TensorInfo>& infos) {
  std::vector<Tensor> tensors;
  tensors.reserve(infos.size());
  for (const TensorInfo& info : infos) tensors.push_back(Tensor::empty(info.layout, info.dtype));
  receive(kValues, part, m, std::move(tensors));
}

std::vector<Tensor> PipelineChannel::take_values(int part,
                                                 int m,
                                                 const TensorInfo& key,
                                                 const Mesh& mesh) {
  Known& known = known_[part];
  const std::vector<std::int64_t> of = described(key);
  if (!known.contains(of)) {
    std::vector<std::int64_t> size = {0};
    receive(kSize, part, m, {to_tensor(size)});
    size = numbers_of(take(kSize, part, m)[0]);
    std::vector<std::int64_t> text(static_cast<std::size_t>(size[0]));
    receive(kDescription, part, m, {to_tensor(text)});
    text = numbers_of(take(kDescription, part, m)[0]);
    if (known.size() >= kMaxKeys) known.clear();
    std::vector<TensorInfo>& infos = known[of];
    const std::int64_t* at = text.data();
    while (at != text.data() + text.size()) infos.push_back(TensorInfo::read(at, mesh));
  }
  const std::vector<TensorInfo>& infos = known.at(of);
  if (!arrivals_.contains({kValues, part, m})) receive_values(part, m, infos);
  std::vector<Tensor> values = take(kValues, part, m);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (infos[i].gradient) values[i] = require_grad(values[i]);
  return values;
}

void PipelineChannel::send_gradients(int part, int m, const std::vector<Tensor>& gradients) {
  send(kGradients, part, m, gradients);
}

void PipelineChannel::expect_gradients(int part, int m, const std::vector<Tensor>& values) {
  if (stages_.size() == 1 || arrivals_.contains({kGradients, part, m})) return;
  std::vector<Tensor> tensors;
  tensors.reserve(values.size());
  for (const Tensor& t : values)
    tensors.push_back(Tensor::empty(t.layout(), t.dtype(), t.device()));
  receive(kGradients, part, m, std::move(tensors));
}

std::vector<Tensor> PipelineChannel::take_gradients(int part,
                                                    int m,
                                                    const std::vector<Tensor>& values) {
  expect_gradients(part, m, values);
  return take(kGradients, part, m);
}

}  // namespace tessera::nn
