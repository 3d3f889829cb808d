#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/checkpoints.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <tessera/parallel/communicator.hpp>
#include <utility>

#include "random_draws.hpp"

namespace tessera::nn {

namespace {

using Named = std::vector<std::pair<std::string, Tensor>>;

constexpr const char* kFormat = "tessera.checkpoint";
constexpr const char* kVersion = "1";
constexpr std::string_view kExtra = "extra.";
constexpr std::string_view kDraws = "random.draws.";

Mesh mesh_of(Module& model) {
  const std::vector<Parameter> parameters = model.parameters();
  if (!parameters.empty()) return parameters[0].whole_mesh();
  const auto buffers = model.named_buffers();
  if (buffers.empty()) {
    throw UsageError("checkpoint: the model has neither parameters nor buffers.");
  }
  return buffers[0].second.mesh();
}

void append(Named& all, const char* prefix, const Named& some) {
  for (const auto& [name, tensor] : some) all.emplace_back(prefix + name, tensor);
}

Named tensors_of(const TrainingState& state) {
  if (state.model == nullptr) throw UsageError("checkpoint: no model given. Set state.model.");
  Named all;
  append(all, "model/", state_dict(*state.model));
  if (state.optimizer != nullptr) append(all, "optimizer/", state.optimizer->state());
  if (state.ema != nullptr) append(all, "ema/", state.ema->state());
  return all;
}

void write(const std::string& path, const Mesh& mesh, const Named& all, const io::Metadata& meta) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : all) specs.push_back({name, tensor.dtype(), tensor.shape()});
  io::SafetensorsWriter writer(path, std::move(specs), meta, collective(mesh));
  for (const auto& [name, tensor] : all) writer.write(name, tensor);
  writer.commit();
}

/// A file or a directory of tensors with their metadata.
struct Stored {
  std::string path;
  std::vector<io::TensorSpec> tensors;
  const io::Metadata* metadata;
  std::function<void(const std::vector<io::ShardReader::Request>&)> read;

  explicit Stored(const io::SafetensorsReader& file)
      : path(file.path()),
        tensors(file.entries().begin(), file.entries().end()),
        metadata(&file.metadata()),
        read([&file](const auto& requests) {
          for (const auto& r : requests) file.read_box(r.name, r.box, r.out);
        }) {}
  explicit Stored(const io::ShardReader& directory)
      : path(directory.path()),
        tensors(directory.tensors()),
        metadata(&directory.metadata()),
        read([&directory](const auto& requests) { directory.read(requests); }) {}
};

/// Checks everything before anything is changed.
void check(const Stored& from, const Named& all) {
  std::map<std::string_view, const io::TensorSpec*> stored;
  for (const io::TensorSpec& spec : from.tensors) stored[spec.name] = &spec;
  for (const auto& [name, tensor] : all) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      std::vector<std::string> names;
      for (const io::TensorSpec& spec : from.tensors) names.push_back(spec.name);
      throw DataError(
          str(from.path, ": holds no tensor \"", name, "\".", io::did_you_mean(name, names)));
    }
    const io::TensorSpec& spec = *found->second;
    if (!(spec.shape == tensor.shape())) {
      throw DataError(str("checkpoint: ", from.path, " holds ", name, " of shape ", spec.shape,
                          ", the model has ", tensor.shape(),
                          ". Build the model with the options that the file was written with."));
    }
    stored.erase(found);
  }
  if (!stored.empty()) {
    throw DataError(str("checkpoint: ", from.path, " holds ", stored.begin()->first,
                        ", which has no place here. Build the model with the options that the file "
                        "was written with."));
  }
}

void read(const Stored& from, const Named& all) {
  std::vector<io::ShardReader::Request> requests;
  for (const auto& [name, tensor] : all) {
    if (!tensor.local_box().empty())
      requests.push_back({name, tensor.local_box(), tensor.mutable_local()});
  }
  from.read(requests);
}

template <class T>
T number(const Stored& from, const std::string& key) {
  const auto it = from.metadata->find(key);
  T value = 0;
  if (it != from.metadata->end()) {
    const std::string& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return value;
  }
  throw DataError(str("checkpoint: ", from.path, " does not say \"", key,
                      "\" (it is damaged, or not a checkpoint). Use another one."));
}

io::Metadata metadata_of(const TrainingState& state) {
  const RandomContext& random = state.model->random();
  io::Metadata meta = {{kFormat, kVersion},
                       {"step", std::to_string(state.step)},
                       {"random.seed", std::to_string(random.seed)},
                       {"random.step", std::to_string(random.step)},
                       {"random.micro_batch", std::to_string(random.micro_batch)}};
  for (const auto& [name, module] : state.model->named_modules()) {
    const std::uint64_t draws = RandomDraws::get(*module);
    if (draws > 0) meta[std::string(kDraws) + name] = std::to_string(draws);
  }
  if (state.optimizer != nullptr) {
    meta["optimizer.steps"] = std::to_string(state.optimizer->steps());
    meta["optimizer.lr"] =
        fmt::format("{}", state.optimizer->lr());  // shortest text that reads back
  }
  if (state.ema != nullptr) meta["ema.updates"] = std::to_string(state.ema->updates());
  for (const auto& [key, value] : state.extra) meta[std::string(kExtra) + key] = value;
  return meta;
}

/// What a checkpoint says beside tensors; complete before anything of it is used.
struct Numbers {
  RandomContext random;
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;
  double lr = 0.0;
  std::int64_t ema_updates = 0;

  Numbers(const Stored& from, const TrainingState& state) {
    if (!from.metadata->contains(kFormat)) {
      throw DataError(str("checkpoint: ", from.path,
                          " is not a checkpoint of a training (it may hold weights only). Read it "
                          "with load_weights."));
    }
    random.seed = number<std::uint64_t>(from, "random.seed");
    random.step = number<std::uint64_t>(from, "random.step");
    random.micro_batch = number<std::uint64_t>(from, "random.micro_batch");
    step = number<std::int64_t>(from, "step");
    if (state.optimizer != nullptr) {
      lr = number<double>(from, "optimizer.lr");
      optimizer_steps = number<std::int64_t>(from, "optimizer.steps");
    }
    if (state.ema != nullptr) ema_updates = number<std::int64_t>(from, "ema.updates");
  }
};

void check(const Stored& from, TrainingState& state) {
  const Numbers numbers(from, state);
  check(from, tensors_of(state));
}

void read(const Stored& from, TrainingState& state) {
  const Numbers numbers(from, state);
  read(from, tensors_of(state));
  if (state.optimizer != nullptr) {
    state.optimizer->set_steps(numbers.optimizer_steps);
    state.optimizer->set_lr(numbers.lr);
  }
  if (state.ema != nullptr) state.ema->set_updates(numbers.ema_updates);
  state.step = numbers.step;
  state.model->random() = numbers.random;
  for (const auto& [name, module] : state.model->named_modules()) {
    const std::string key = std::string(kDraws) + name;
    RandomDraws::set(*module, from.metadata->contains(key) ? number<std::uint64_t>(from, key) : 0);
  }
  state.extra.clear();
  for (const auto& [key, value] : *from.metadata) {
    if (key.starts_with(kExtra)) state.extra[key.substr(kExtra.size())] = value;
  }
}

}  // namespace

io::Collective collective(const Mesh& mesh) {
  io::Collective c;
  c.rank = mesh.rank();
  c.size = mesh.size();
  if (c.size > 1) {
    const parallel::Group group = parallel::Group::of(mesh, mesh.all_axes());
    c.sum = [group](std::span<std::int64_t> values) {
      parallel::all_reduce(group, values.data(), static_cast<std::int64_t>(values.size()),
                           DType::kInt64, ReduceOp::kSum,
                           {.op = "file access", .layout = {}, .device = {}})
          .wait();
    };
  }
  return c;
}

std::vector<std::pair<std::string, Tensor>> state_dict(Module& model) {
  Named all;
  for (const auto& [name, p] : model.named_parameters()) all.emplace_back(name, p.stored());
  append(all, "", model.named_buffers());
  return all;
}

void save_weights(const std::string& path, Module& model, const io::Metadata& metadata) {
  write(path, mesh_of(model), state_dict(model), metadata);
}

void load_weights(const std::string& path, Module& model) {
  const Named all = state_dict(model);
  collective(mesh_of(model)).together([&] {
    const io::SafetensorsReader reader(path);
    check(Stored(reader), all);
    read(Stored(reader), all);
  });
}

void save_checkpoint(const std::string& path, TrainingState& state) {
  const Named all = tensors_of(state);
  write(path, mesh_of(*state.model), all, metadata_of(state));
}

void load_checkpoint(const std::string& path, TrainingState& state) {
  if (state.model == nullptr) throw UsageError("checkpoint: no model given. Set state.model.");
  const io::Collective ranks = collective(mesh_of(*state.model));
  std::int64_t directory = 0;
  std::optional<io::ShardReader> shards;
  ranks.together([&] {
    std::error_code ignored;
    directory = std::filesystem::is_directory(path, ignored) ? 1 : 0;
    if (directory != 0) shards.emplace(path);
  });
  if (ranks.total(directory) != directory * ranks.size)
    throw IoError(str("checkpoint: ", path,
                      " is not the same thing on all nodes. Give one that "
                      "all can reach."));
  if (shards) shards->verify(ranks);
  ranks.together([&] {
    if (shards) {
      check(Stored(*shards), state);
      read(Stored(*shards), state);
    } else {
      const io::SafetensorsReader reader(path);
      check(Stored(reader), state);
      read(Stored(reader), state);
    }
  });
}

Checkpoints::Checkpoints(const Mesh& mesh, const io::SnapshotOptions& options)
    : snapshots_(options, collective(mesh)) {}

void Checkpoints::save(TrainingState& state) {
  const Named all = tensors_of(state);
  std::vector<io::ShardedTensor> tensors;
  std::vector<View> views;
  // Stages of a pipeline have meshes of their own: ranks there become ranks of all.
  const Mesh whole = mesh_of(*state.model);
  std::map<int, int> rank_of;
  for (int rank = 0; rank < whole.size(); ++rank) rank_of[whole.process_of(rank)] = rank;
  std::map<std::uint64_t, std::vector<std::int64_t>> loads;  // by mesh
  for (const auto& [name, tensor] : all) {
    const Mesh& mesh = tensor.mesh();
    io::ShardedTensor shared =
        io::share_out(name, tensor.dtype(), tensor.layout(), loads[mesh.hash()]);
    for (io::ShardPart& part : shared.parts) part.rank = rank_of.at(mesh.process_of(part.rank));
    tensors.push_back(std::move(shared));
    views.push_back(tensor.local());
  }
  snapshots_.save(state.step, std::move(tensors), views, metadata_of(state));
}

bool Checkpoints::load(TrainingState& state) {
  return snapshots_.load([&](const io::ShardReader& from) { check(Stored(from), state); },
                         [&](const io::ShardReader& from) { read(Stored(from), state); });
}

}  // namespace tessera::nn
