#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tessera/nn/convolutions.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <tessera/nn/weight_names.hpp>
#include <tessera/nn/weight_norms.hpp>

#include "glob.hpp"
#include "io/posix_file.hpp"

namespace tessera::nn {
namespace {

using Order = WeightRule::Order;
using Captures = std::vector<std::string_view>;

std::string fill_in(const WeightRule& rule, const Captures& taken) {
  std::string name;
  std::size_t next = 0;
  for (const char c : rule.theirs) {
    if (c != '*') {
      name += c;
    } else if (next < taken.size()) {
      name += taken[next++];
    } else {
      throw UsageError(str("weights: the name \"", rule.theirs, "\" has more * than \"", rule.ours,
                           "\". Give as many on both sides."));
    }
  }
  return name;
}

Dims permuted(const Dims& ours, const std::vector<int>& order) {
  Dims theirs;
  for (const int d : order) theirs.push_back(ours[d]);
  return theirs;
}

/// A tensor of the model and where it lies there.
struct Entry {
  std::string name;
  Tensor tensor;
  std::string theirs;
  std::vector<int> order;  ///< dimension d there is order[d] here
  int part = 0;
  int parts = 1;
  bool tokens = false;  ///< all dimensions but the last are one there, behind one of size 1

  Shape shape() const {
    if (tokens) {
      const std::int64_t channels = tensor.shape().back();
      return {1, channels > 0 ? tensor.shape().product() / channels : 0, channels};
    }
    Shape shape = permuted(tensor.shape(), order);
    if (parts > 1) shape[0] *= parts;
    return shape;
  }
  /// Calls f(box there, view) for the pieces of a part.
  void for_each_piece(const Box& ours,
                      const View& local,
                      const std::function<void(const Box&, const View&)>& f) const {
    if (!tokens) return f(box(ours), view(local));
    const int last = ours.dims() - 1;
    Box outer = ours;
    outer.set(last, {0, 1});
    for_each_index(outer, [&](const Index& i) {
      std::int64_t token = 0;
      std::int64_t offset = 0;
      for (int d = 0; d < last; ++d) {
        token = token * tensor.shape()[d] + i[d];
        offset += (i[d] - ours.lo[d]) * local.strides[d];
      }
      const View row = {
          local.as<std::byte>() + offset * static_cast<std::int64_t>(size_of(local.dtype)),
          local.dtype,
          {1, 1, ours[last].size()},
          {0, 0, local.strides[last]},
          local.device};
      f(Box({0, token, ours.lo[last]}, {1, token + 1, ours.hi[last]}), row);
    });
  }

 private:
  Box box(const Box& ours) const {
    Box box(permuted(ours.lo, order), permuted(ours.hi, order));
    if (parts > 1) {
      const std::int64_t start = part * tensor.shape()[order[0]];
      box.lo[0] += start;
      box.hi[0] += start;
    }
    return box;
  }
  View view(View ours) const {
    ours.shape = permuted(ours.shape, order);
    ours.strides = permuted(ours.strides, order);
    return ours;
  }
};

/// The weight of a convolution, from its module; null for other modules.
const char* convolution_weight(const Module* module) {
  if (dynamic_cast<const Conv*>(module) != nullptr ||
      dynamic_cast<const ConvTranspose*>(module) != nullptr ||
      dynamic_cast<const PartialConv*>(module) != nullptr)
    return "weight";
  if (dynamic_cast<const WeightNormConv*>(module) != nullptr) return "weight.v";
  if (dynamic_cast<const SpectralNormConv*>(module) != nullptr) return "weight.weight";
  return nullptr;
}

std::vector<Entry> entries_of(Module& model, const WeightNames& names) {
  std::set<std::string> convolutions;
  for (const auto& [path, module] : model.named_modules()) {
    if (const char* const weight = convolution_weight(module))
      convolutions.insert(path.empty() ? weight : path + "." + weight);
  }
  std::vector<Entry> entries;
  for (const auto& [name, tensor] : state_dict(model)) {
    Entry entry = {.name = name, .tensor = tensor, .theirs = name, .order = {}};
    Order order = Order::kByLayer;
    for (const WeightRule& rule : names.rules) {
      Captures taken;
      if (!glob_match(rule.ours, name, taken)) continue;
      entry.theirs = rule.theirs.empty() ? "" : fill_in(rule, taken);
      entry.part = rule.part;
      entry.parts = rule.parts;
      order = rule.order;
      break;
    }
    if (entry.theirs.empty()) continue;
    if (entry.parts < 1 || entry.part < 0 || entry.part >= entry.parts ||
        (entry.parts > 1 && tensor.dims() == 0))
      throw UsageError(str("weights: \"", name, "\" is part ", entry.part, " of ", entry.parts,
                           " (parts are counted from 0, along dimension 0). Mend the rule."));
    const int dims = tensor.dims();
    entry.tokens = order == Order::kTokens;
    if (entry.tokens && (dims < 2 || entry.parts > 1))
      throw UsageError(str("weights: \"", name, "\" of shape ", tensor.shape(),
                           " has no tokens (dimensions before the last). Mend the rule."));
    for (int d = 0; d < dims; ++d) entry.order.push_back(d);
    if (order == Order::kByLayer)
      order = convolutions.contains(name) ? Order::kChannelsFirst : Order::kAsHere;
    if (order == Order::kChannelsFirst && dims > 2) {
      entry.order.pop_back();
      entry.order.insert(entry.order.begin() + 1, dims - 1);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Mesh mesh_of(Module& model, const std::vector<Entry>& entries) {
  if (entries.empty())
    throw UsageError("weights: no tensor of the model is in the file. Mend the rules.");
  const std::vector<Parameter> parameters = model.parameters();
  return parameters.empty() ? entries[0].tensor.mesh() : parameters[0].whole_mesh();
}

void check(const io::SafetensorsReader& file,
           const std::vector<Entry>& entries,
           const WeightNames& names) {
  std::set<std::string> known;
  for (const Entry& entry : entries) {
    known.insert(entry.theirs);
    const Shape& shape = file.entry(entry.theirs).shape;
    if (!(shape == entry.shape()))
      throw DataError(str("weights: ", file.path(), " holds ", entry.theirs, " of shape ", shape,
                          ", but ", entry.name, " of shape ", entry.tensor.shape(), " asks for ",
                          entry.shape(), ". Mend the rules, or build the model as it was there."));
  }
  for (const auto& entry : file.entries()) {
    bool passed = known.contains(entry.name);
    for (const std::string& pattern : names.ignored)
      passed = passed || glob_match(pattern, entry.name);
    if (!passed)
      throw DataError(str("weights: ", file.path(), " holds ", entry.name,
                          ", which has no place here. Add a rule, or ignore it."));
  }
}

}  // namespace

WeightNames read_weight_names(const std::string& path) {
  return parse_weight_names(io::read_text_file(path), path);
}

WeightNames parse_weight_names(const std::string& text, const std::string& path) {
  try {
    const auto json = nlohmann::json::parse(text);
    WeightNames names;
    for (const auto& [key, value] : json.items())
      if (key != "rules" && key != "ignored" && key != "about")
        throw DataError(str("\"", key, "\" is unknown"));
    for (const auto& item : json.value("rules", nlohmann::json::array())) {
      WeightRule rule;
      for (const auto& [key, value] : item.items()) {
        if (key == "ours") {
          rule.ours = value.get<std::string>();
        } else if (key == "theirs") {
          rule.theirs = value.get<std::string>();
        } else if (key == "part") {
          rule.part = value.get<int>();
        } else if (key == "parts") {
          rule.parts = value.get<int>();
        } else if (key == "order") {
          const std::map<std::string, Order> orders = {{"by_layer", Order::kByLayer},
                                                       {"as_here", Order::kAsHere},
                                                       {"channels_first", Order::kChannelsFirst},
                                                       {"tokens", Order::kTokens}};
          const auto order = orders.find(value.get<std::string>());
          if (order == orders.end()) throw DataError(str("the order ", value, " is unknown"));
          rule.order = order->second;
        } else {
          throw DataError(str("\"", key, "\" is unknown.",
                              io::did_you_mean(key, {"ours", "theirs", "part", "parts", "order"})));
        }
      }
      names.rules.push_back(std::move(rule));
    }
    for (const auto& item : json.value("ignored", nlohmann::json::array()))
      names.ignored.push_back(item.get<std::string>());
    return names;
  } catch (const nlohmann::json::exception& e) {
    throw DataError(str("weights: ", path, " holds no names (", e.what(), "). Mend it."));
  } catch (const DataError& e) {
    throw DataError(str("weights: ", path, " holds no names (", e.what(), "). Mend it."));
  }
}

void import_weights(const std::string& path, Module& model, const WeightNames& names) {
  const std::vector<Entry> entries = entries_of(model, names);
  collective(mesh_of(model, entries)).together([&] {
    const io::SafetensorsReader file(path);
    check(file, entries, names);
    for (const Entry& entry : entries) {
      const Box& box = entry.tensor.local_box();
      if (box.empty()) continue;
      entry.for_each_piece(
          box, entry.tensor.mutable_local(),
          [&](const Box& there, const View& to) { file.read_box(entry.theirs, there, to); });
    }
  });
}

void export_weights(const std::string& path,
                    Module& model,
                    const WeightNames& names,
                    const io::Metadata& metadata) {
  const std::vector<Entry> entries = entries_of(model, names);
  std::map<std::string, std::set<int>> parts;
  std::vector<io::TensorSpec> specs;
  for (const Entry& entry : entries) {
    std::set<int>& there = parts[entry.theirs];
    if (there.empty()) specs.push_back({entry.theirs, entry.tensor.dtype(), entry.shape()});
    const auto same = [&](const io::TensorSpec& spec) {
      return spec.name != entry.theirs ||
             (spec.shape == entry.shape() && spec.dtype == entry.tensor.dtype());
    };
    if (!there.insert(entry.part).second || !std::all_of(specs.begin(), specs.end(), same))
      throw UsageError(str("weights: \"", entry.theirs, "\" is the name of two tensors, \"",
                           entry.name, "\" one of them. Mend the rules."));
  }
  for (const Entry& entry : entries)
    if (std::ssize(parts[entry.theirs]) != entry.parts)
      throw UsageError(str("weights: of the ", entry.parts, " parts of \"", entry.theirs,
                           "\" only ", parts[entry.theirs].size(),
                           " are named. Add rules for all."));
  io::SafetensorsWriter writer(path, std::move(specs), metadata,
                               collective(mesh_of(model, entries)));
  for (const Entry& entry : entries) {
    const Box& box = entry.tensor.local_box();
    if (!io::is_first_replica(entry.tensor.layout()) || box.empty()) continue;
    entry.for_each_piece(box, entry.tensor.local(), [&](const Box& there, const View& from) {
      writer.write_box(entry.theirs, there, from);
    });
  }
  writer.commit();
}

}  // namespace tessera::nn
