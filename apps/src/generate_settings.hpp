#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/models/solvers.hpp>
#include <tessera/nn/io/settings.hpp>
#include <vector>

namespace tessera::app {

/// A solver that `tessera generate` offers.
struct GenerateCase {
  const char* name;
  const char* help;
  int dims;  ///< of the domain where none are given
};
const std::vector<GenerateCase>& generate_cases();

/// Everything that decides what `tessera generate` writes; kept in the file as attribute `config`.
struct GenerateSettings {
  /// Takes the defaults of a case; throws UsageError for an unknown name.
  explicit GenerateSettings(const std::string& name);

  std::string name;
  std::vector<std::int64_t> size;
  std::int64_t dims = 0;
  std::int64_t samples = 1;
  std::int64_t frames = 32;
  double interval = 1.0;
  double spin_up = 0.0;
  std::string precision = "f32";
  std::uint64_t seed = 0;

  solvers::HeatOptions heat;
  solvers::GrayScottOptions gray_scott;
  solvers::FlowOptions flow;

  /// Declares all fields that the case has; they are read and written through `settings`.
  void declare(io::Settings& settings);
  /// Points along each dimension; throws UsageError unless there are 1 to 3 that the case allows.
  Shape grid() const;
  DType dtype() const;
  /// The solver at time 0; `layout` has shape [samples, grid..., any].
  std::unique_ptr<solvers::Solver> solver(const Layout& layout) const;
};

}  // namespace tessera::app
