#include <fmt/format.h>

#include <charconv>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/parallel/communicator.hpp>

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

/// Checks everything before anything is changed.
void check(const io::SafetensorsReader& reader, const Named& all) {
  for (const auto& [name, tensor] : all) {
    const auto& entry = reader.entry(name);
    if (!(entry.shape == tensor.shape())) {
      throw DataError(str("checkpoint: ", reader.path(), " holds ", name, " of shape ", entry.shape,
                          ", the model has ", tensor.shape(),
                          ". Build the model with the options that the file was written with."));
    }
  }
  for (const auto& entry : reader.entries()) {
    bool known = false;
    for (const auto& [name, tensor] : all) known = known || name == entry.name;
    if (!known) {
      throw DataError(
          str("checkpoint: ", reader.path(), " holds ", entry.name,
              ", which has no place here. Build the model with the options that the file "
              "was written with."));
    }
  }
}

void read(const io::SafetensorsReader& reader, const Named& all) {
  for (const auto& [name, tensor] : all) {
    if (!tensor.local_box().empty()) {
      reader.read_box(name, tensor.local_box(), tensor.mutable_local());
    }
  }
}

template <class T>
T number(const io::SafetensorsReader& reader, const std::string& key) {
  const auto it = reader.metadata().find(key);
  T value = 0;
  if (it != reader.metadata().end()) {
    const std::string& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) return value;
  }
  throw DataError(str("checkpoint: ", reader.path(), " does not say \"", key,
                      "\" (it is damaged, or not a checkpoint). Use another one."));
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
    check(reader, all);
    read(reader, all);
  });
}

void save_checkpoint(const std::string& path, TrainingState& state) {
  const Named all = tensors_of(state);
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
  write(path, mesh_of(*state.model), all, meta);
}

void load_checkpoint(const std::string& path, TrainingState& state) {
  const Named all = tensors_of(state);
  collective(mesh_of(*state.model)).together([&] {
    const io::SafetensorsReader reader(path);
    if (!reader.metadata().contains(kFormat)) {
      throw DataError(str("checkpoint: ", path,
                          " is not a checkpoint of a training (it may hold weights only). Read it "
                          "with load_weights."));
    }
    check(reader, all);
    RandomContext random;
    random.seed = number<std::uint64_t>(reader, "random.seed");
    random.step = number<std::uint64_t>(reader, "random.step");
    random.micro_batch = number<std::uint64_t>(reader, "random.micro_batch");
    const auto step = number<std::int64_t>(reader, "step");
    if (state.optimizer != nullptr) {
      const auto lr = number<double>(reader, "optimizer.lr");
      state.optimizer->set_steps(number<std::int64_t>(reader, "optimizer.steps"));
      state.optimizer->set_lr(lr);
    }
    if (state.ema != nullptr) state.ema->set_updates(number<std::int64_t>(reader, "ema.updates"));
    read(reader, all);
    state.step = step;
    state.model->random() = random;
    for (const auto& [name, module] : state.model->named_modules()) {
      const std::string key = std::string(kDraws) + name;
      RandomDraws::set(*module,
                       reader.metadata().contains(key) ? number<std::uint64_t>(reader, key) : 0);
    }
    state.extra.clear();
    for (const auto& [key, value] : reader.metadata()) {
      if (key.starts_with(kExtra)) state.extra[key.substr(kExtra.size())] = value;
    }
  });
}

}  // namespace tessera::nn
