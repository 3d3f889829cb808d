#include "trained.hpp"

#include <charconv>
#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/roll.hpp>
#include <tessera/nn/checkpoint.hpp>

namespace tessera::app {
namespace {

constexpr const char* kKind = "tessera.model";

const ModelEntry& entry_of(const std::string& name, const std::string& path) {
  for (const ModelEntry& entry : model_entries())
    if (name == entry.name) return entry;
  throw DataError(str("model: ", path, " holds a \"", name,
                      "\", which this program does not know. Use a newer one."));
}

}  // namespace

void open_run(const RunFiles& files, bool resume) {
  if (!resume && std::filesystem::exists(files.metrics())) {
    throw UsageError(str("train: ", files.dir,
                         " holds a run already. Continue it with --resume, or choose another "
                         "directory."));
  }
  std::error_code error;
  std::filesystem::create_directories(files.dir, error);
  if (error) {
    throw IoError(str("train: the directory ", files.dir, " cannot be made (", error.message(),
                      "). Choose another with --out."));
  }
}

const std::string& text_in(const io::Metadata& metadata,
                           const std::string& key,
                           const std::string& path) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) {
    throw DataError(str("model: ", path, " does not say \"", key,
                        "\" (it was not written by a training). Give the directory of a run."));
  }
  return it->second;
}

double number_in(const io::Metadata& metadata, const std::string& key, const std::string& path) {
  const std::string& t = text_in(metadata, key, path);
  double value = 0.0;
  const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), value);
  if (error != std::errc() || end != t.data() + t.size())
    throw DataError(str("model: ", path, " has \"", t, "\" for ", key, "."));
  return value;
}

Tensor Trained::over_mirrors(const Tensor& x) const {
  const int images = 1 << (x.dims() - 2);
  Tensor sum = (*this)(x);
  for (int image = 1; image < images; ++image) {
    Dims mirrored;
    for (int d = 1; d + 1 < x.dims(); ++d)
      if ((image >> (d - 1) & 1) != 0) mirrored.push_back(d);
    sum = sum + flip((*this)(flip(x, mirrored)), mirrored);
  }
  return sum * (1.0 / images);
}

void save_trained(const std::string& path,
                  const Model& model,
                  RunSettings& settings,
                  const io::Metadata& numbers) {
  io::Settings all;
  settings.declare(all);
  std::string edges;
  for (const EdgeRule edge : model.transform().edges)
    edges += edge == EdgeRule::kCircular ? 'c' : 'r';
  io::Metadata metadata = {{kKind, settings.entry.name},
                           {"config", all.toml()},
                           {"edges", edges},
                           {"in_channels", std::to_string(model.transform().in_channels)},
                           {"out_channels", std::to_string(model.transform().out_channels)}};
  metadata.insert(numbers.begin(), numbers.end());
  nn::save_weights(path, model.network(), metadata);
}

Trained load_trained(const std::string& path, const Mesh& mesh) {
  Trained trained;
  Transform transform;
  nn::collective(mesh).together([&] {
    trained.path = path;
    trained.metadata = io::SafetensorsReader(path).metadata();
    trained.settings = std::make_unique<RunSettings>(entry_of(trained.text(kKind), path));
    io::Settings all;
    trained.settings->declare(all);
    all.load_text(trained.text("config"), path);
    transform.in_channels = static_cast<std::int64_t>(trained.number("in_channels"));
    transform.out_channels = static_cast<std::int64_t>(trained.number("out_channels"));
    for (const char c : trained.text("edges")) {
      transform.edges.push_back(c == 'c' ? EdgeRule::kCircular : EdgeRule::kReplicate);
    }
    transform.dims = static_cast<int>(transform.edges.size());
  });
  trained.model = std::make_unique<Model>(*trained.settings, transform, mesh);
  nn::load_weights(path, trained.model->network());
  trained.model->network().eval();
  return trained;
}

}  // namespace tessera::app
