#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/nn/module.hpp>

#include "glob.hpp"

namespace tessera::nn {
namespace {

/// Walks a tree of modules; the callbacks get full paths.
class Walk : public Fields {
 public:
  std::function<void(const std::string&, Parameter&)> on_parameter = [](auto&&...) {};
  std::function<void(const std::string&, Tensor&)> on_buffer = [](auto&&...) {};
  std::function<void(const std::string&, Module&)> on_module = [](auto&&...) {};

  void run(Module& root) {
    on_module("", root);
    root.fields(*this);
  }

 protected:
  void parameter(std::string_view name, Parameter& p) override {
    if (std::find(seen_.begin(), seen_.end(), p) != seen_.end()) return;  // tied: first name wins
    seen_.push_back(p);
    on_parameter(full(name), p);
  }
  void buffer(std::string_view name, Tensor& t) override { on_buffer(full(name), t); }
  void child(std::string_view name, Module& m) override {
    on_module(full(name), m);
    enter(name);
    m.fields(*this);
    leave();
  }
  void enter(std::string_view name) override {
    lengths_.push_back(prefix_.size());
    prefix_ = full(name) + ".";
  }
  void leave() override {
    prefix_.resize(lengths_.back());
    lengths_.pop_back();
  }

 private:
  std::string full(std::string_view name) const {
    if (name.empty() || name.find('.') != std::string_view::npos) {
      throw UsageError(str("module: field name \"", name,
                           "\" is not usable (names form paths: not empty, no dots). Rename it in "
                           "fields()."));
    }
    return prefix_ + std::string(name);
  }
  std::string prefix_;
  std::vector<std::size_t> lengths_;
  std::vector<Parameter> seen_;
};

std::uint64_t hash_text(std::string_view text) {
  Hasher h;
  h.add_bytes(text.data(), text.size());
  return h.value();
}

}  // namespace

std::vector<std::pair<std::string, Parameter>> Module::named_parameters() {
  std::vector<std::pair<std::string, Parameter>> found;
  Walk walk;
  walk.on_parameter = [&](const std::string& path, Parameter& p) { found.emplace_back(path, p); };
  walk.run(*this);
  return found;
}

std::vector<Parameter> Module::parameters() {
  std::vector<Parameter> found;
  for (auto& [path, p] : named_parameters()) found.push_back(std::move(p));
  return found;
}

std::vector<std::pair<std::string, Tensor>> Module::named_buffers() {
  std::vector<std::pair<std::string, Tensor>> found;
  Walk walk;
  walk.on_buffer = [&](const std::string& path, Tensor& t) { found.emplace_back(path, t); };
  walk.run(*this);
  return found;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> found;
  Walk walk;
  walk.on_module = [&](const std::string& path, Module& m) { found.emplace_back(path, &m); };
  walk.run(*this);
  return found;
}

void Module::train(bool on) {
  for (const auto& [path, module] : named_modules()) module->training_ = on;
}

void Module::to(DType dtype) {
  Walk walk;
  walk.on_parameter = [&](const std::string&, Parameter& p) { p.to(dtype); };
  walk.on_buffer = [&](const std::string&, Tensor& t) {
    const NoGrad no_grad;
    if (is_floating(t.dtype())) t = cast(t, dtype);
  };
  walk.run(*this);
}

std::int64_t Module::parameter_count() {
  std::int64_t count = 0;
  for (const Parameter& p : parameters()) count += p.numel();
  return count;
}

std::string Module::summary() {
  struct Row {
    std::string name, what, layout;
    std::int64_t count, bytes;
  };
  std::vector<Row> rows;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  Walk walk;
  walk.on_module = [&](const std::string& path, Module& m) {
    rows.push_back({path, m.describe(), "", -1, 0});
  };
  walk.on_parameter = [&](const std::string& path, Parameter& p) {
    rows.push_back({path, p.shape().str(), p.rest().is_replicated() ? "replicated" : p.rest().str(),
                    p.numel(), p.local_bytes()});
    count += p.numel();
    bytes += p.local_bytes();
  };
  walk.on_buffer = [&](const std::string& path, Tensor& t) {
    rows.push_back({path, t.shape().str() + " buffer", t.layout().str(), 0, t.local_bytes()});
    bytes += t.local_bytes();
  };
  walk.run(*this);

  std::size_t name_width = 4;
  std::size_t what_width = 4;
  std::size_t layout_width = 7;
  for (const Row& r : rows) {
    name_width = std::max(name_width, r.name.size());
    what_width = std::max(what_width, r.what.size());
    layout_width = std::max(layout_width, r.layout.size());
  }
  const auto line = [&](const std::string& name, const std::string& what, const std::string& layout,
                        const std::string& n, const std::string& b) {
    std::string text = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>12}  {:>10}", name, name_width, what,
                                   what_width, layout, layout_width, n, b);
    text.erase(text.find_last_not_of(' ') + 1);
    return text + '\n';
  };
  std::string table = line("name", "what", "at rest", "parameters", "local");
  for (const Row& r : rows) {
    table += r.count < 0 ? line(r.name, r.what, "", "", "")
                         : line(r.name, r.what, r.layout,
                                r.count > 0 ? std::to_string(r.count) : "", format_bytes(r.bytes));
  }
  return table + line("total", "", "", std::to_string(count), format_bytes(bytes));
}

RandomContext& Module::random() const {
  if (!random_) {
    throw UsageError(
        "module: no random context (the model was not initialised). Call nn::initialize(*this, "
        "seed) at the end of the model's constructor.");
  }
  return *random_;
}

RandomKey Module::next_random_key() const {
  return replayed([this] { return draw_key(); });
}

RandomKey Module::draw_key() const {
  const RandomContext& now = random();
  if (!(now == drawn_)) {
    drawn_ = now;
    draws_ = 0;
  }
  Hasher high;
  for (const std::uint64_t v : {now.seed, hash_text(path_), std::uint64_t{1}}) high.add(v);
  Hasher low = high;
  for (const std::uint64_t v : {now.step, now.micro_batch, draws_}) low.add(v);
  ++draws_;
  return {high.value(), low.value()};
}

void initialize(Module& model, std::uint64_t seed) {
  const auto context = std::make_shared<RandomContext>(RandomContext{.seed = seed});
  Walk walk;
  walk.on_module = [&](const std::string& path, Module& m) {
    m.path_ = path;
    m.scope_name_ = intern(path);
    m.random_ = context;
    m.drawn_ = *context;
    m.draws_ = 0;
  };
  walk.on_parameter = [&](const std::string& path, Parameter& p) {
    Hasher high;
    high.add(seed);
    high.add(0);  // apart from the keys of random draws, which add 1
    p.initialize(path, {high.value(), hash_text(path)});
  };
  walk.run(model);
}

Tensor Module::in_compute_type(const Tensor& x) const {
  return is_floating(x.dtype()) ? cast(x, *compute_) : x;
}

Tensor Layer::recomputed(const Tensor& x) const {
  return tessera::recompute([this](const Tensor& y) { return forward(y); }, x, *recomputes());
}

namespace {

[[noreturn]] void throw_no_module(const char* what, const std::string& pattern, Module& model) {
  std::string names;
  for (const auto& [path, module] : model.named_modules())
    names += (names.empty() || path.empty() ? "" : ", ") + path;
  throw UsageError(
      str(what, ": pattern \"", pattern, "\" matches no module. The model has ", names, "."));
}

bool below(std::string_view path, std::string_view above) {
  return above.empty() || path == above ||
         (path.size() > above.size() && path.starts_with(above) && path[above.size()] == '.');
}

/// The parameters of a module itself, not of those below.
class OwnParameters : public Fields {
 public:
  explicit OwnParameters(Module& m) { m.fields(*this); }
  std::vector<Parameter> found;

 protected:
  void parameter(std::string_view, Parameter& p) override { found.push_back(p); }
  void buffer(std::string_view, Tensor&) override {}
  void child(std::string_view, Module&) override {}
  void enter(std::string_view) override {}
  void leave() override {}
};

}  // namespace

void recompute(Module& model, const std::string& pattern, const RecomputeOptions& options) {
  std::vector<std::pair<std::string, Module*>> outermost;
  for (const auto& [path, module] : model.named_modules()) {
    if (!glob_match(pattern, path)) continue;
    if (!outermost.empty() && below(path, outermost.back().first)) continue;
    if (!module->can_recompute()) {
      throw UsageError(str("recompute: module ", path, " (", module->describe(),
                           ") is not called through Layer::operator() or Module::run(), so "
                           "nothing would be computed again. Name the layers in it."));
    }
    outermost.emplace_back(path, module);
  }
  if (outermost.empty()) throw_no_module("recompute", pattern, model);
  const auto shared = std::make_shared<const RecomputeOptions>(options);
  for (const auto& [path, module] : outermost) module->recompute_ = shared;
}

void compute_in(Module& model, DType dtype, const std::vector<std::string>& except) {
  if (!is_floating(dtype)) {
    throw DTypeError(
        str("compute_in: element type ", name(dtype), " is not floating. Use f32, f64 or bf16."));
  }
  const auto modules = model.named_modules();
  std::vector<std::string> apart;
  for (const std::string& pattern : except) {
    const std::size_t before = apart.size();
    for (const auto& [path, module] : modules)
      if (glob_match(pattern, path)) apart.push_back(path);
    if (apart.size() == before) throw_no_module("compute_in", pattern, model);
  }
  for (const auto& [path, module] : modules) {
    const std::string& at = path;
    const bool excepted =
        std::any_of(apart.begin(), apart.end(), [&](const std::string& a) { return below(at, a); });
    for (Parameter& p : OwnParameters(*module).found) {
      module->compute_ = excepted ? p.dtype() : dtype;
      p.compute_in(*module->compute_);
    }
  }
}

bool glob_match(std::string_view pattern, std::string_view path) {
  std::vector<std::string_view> taken;
  return glob_match(pattern, path, taken);
}

bool glob_match(std::string_view pattern,
                std::string_view path,
                std::vector<std::string_view>& taken) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;  // the last one met, and what it takes so far
  std::size_t from = 0;
  std::size_t to = 0;
  const auto next_star = [&] {
    if (star != std::string_view::npos) taken.push_back(path.substr(from, to - from));
    star = p++;
    from = to = t;
  };
  while (t < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      next_star();
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == path[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++to;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') next_star();
  if (star != std::string_view::npos) taken.push_back(path.substr(from, to - from));
  return p == pattern.size();
}

void place(Module& model, const std::vector<std::pair<std::string, ParameterPlacement>>& rules) {
  auto parameters = model.named_parameters();
  const auto resolve = [](const Placement& placement, const Parameter& p, std::int64_t multiple) {
    return placement.mesh().defined() ? placement.resolve(p.shape(), {.multiple = multiple})
                                      : Layout::replicated(p.mesh(), p.shape());
  };
  struct Choice {
    Parameter* parameter;
    Layout rest, use;
  };
  std::vector<Choice> choices;  // all are checked before any is placed
  for (const auto& [pattern, placement] : rules) {
    bool matched = false;
    for (auto& [path, p] : parameters) {
      if (!glob_match(pattern, path)) continue;
      matched = true;
      choices.push_back({&p, resolve(placement.rest, p, placement.multiple),
                         resolve(placement.use, p, placement.multiple)});
    }
    if (!matched) {
      std::string names;
      for (const auto& [path, p] : parameters) names += (names.empty() ? "" : ", ") + path;
      throw UsageError(
          str("place: pattern \"", pattern, "\" matches no parameter. The model has ", names, "."));
    }
  }
  for (const Choice& c : choices) c.parameter->place(c.rest, c.use);
}

}  // namespace tessera::nn
