#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/core/tensor.hpp>
#include <vector>

/// Solvers of partial differential equations on periodic grids, as decomposed programs: a step is
/// one windowed op, so that the halo exchange and its overlap with the computation are those of
/// every other op. Points lie at cell centres. Every element is computed by the same arithmetic on
/// every mesh: results agree bit for bit on any number of ranks.
namespace tessera::solvers {

/// A state that is advanced in time: `samples` independent ones in one tensor.
class Solver {
 public:
  virtual ~Solver() = default;

  /// Advances by `count` steps of `dt()`.
  void advance(std::int64_t count);
  double dt() const { return dt_; }
  double time() const { return static_cast<double>(steps_) * dt_; }
  std::int64_t steps() const { return steps_; }

  /// What the solver keeps, [N, domain..., channels].
  const Tensor& state() const { return state_; }
  /// What is of interest, [N, domain..., C], with the names of its channels.
  virtual Tensor fields() const { return state_; }
  virtual std::vector<std::string> field_names() const = 0;
  /// Length of the domain along each dimension.
  virtual std::vector<double> lengths() const = 0;

 protected:
  virtual Tensor stepped(const Tensor& state) const = 0;
  Tensor state_;
  double dt_ = 0.0;

 private:
  std::int64_t steps_ = 0;
};

/// A step of at most `largest` of which an integer number makes `interval`.
double fitting_step(double interval, double largest);

/// du/dt = diffusivity * laplacian(u) on [0, 1)^dims, started from plane waves of which each decays
/// as exp(-diffusivity |k|^2 t): the exact answer is known.
struct HeatOptions {
  double diffusivity = 0.01;
  std::int64_t waves = 4;    ///< plane waves in the initial field
  std::int64_t largest = 3;  ///< largest number of periods of a wave along a dimension
  double courant = 0.15;     ///< diffusivity dt / dx^2, summed over dimensions at most 0.5
  double interval = 0.0;     ///< above 0: dt is made to divide it
  std::uint64_t seed = 0;
};

/// Euler steps and central differences: errors O(dx^2) at a fixed `courant`.
class Heat : public Solver {
 public:
  /// `layout` has shape [N, domain..., 1] with 1 to 3 domain dimensions. Throws UsageError for
  /// unstable options.
  Heat(const HeatOptions& options, const Layout& layout, DType dtype = DType::kFloat64);
  std::vector<std::string> field_names() const override { return {"temperature"}; }
  std::vector<double> lengths() const override;
  /// The exact answer at the present time.
  Tensor exact() const;

 protected:
  Tensor stepped(const Tensor& state) const override;

 private:
  Tensor exact_at(double time, const Layout& layout, DType dtype) const;
  HeatOptions options_;
};

/// Gray-Scott reaction and diffusion (Pearson 1993) with unit spacing of points:
/// du/dt = diffusion_u lap(u) - u v^2 + feed (1 - u),
/// dv/dt = diffusion_v lap(v) + u v^2 - (feed + kill) v.
struct GrayScottOptions {
  double diffusion_u = 0.16;
  double diffusion_v = 0.08;
  double feed = 0.035;
  double kill = 0.06;
  std::int64_t seeds = 0;  ///< ellipsoids of the second substance at the start; 0: by the volume
  double largest_step = 0.5;
  double interval = 0.0;  ///< above 0: dt is made to divide it
  std::uint64_t seed = 0;
};

/// Euler steps and central differences, 1-D to 3-D; channels u and v.
class GrayScott : public Solver {
 public:
  /// `layout` has shape [N, domain..., 2].
  GrayScott(const GrayScottOptions& options, const Layout& layout, DType dtype = DType::kFloat32);
  std::vector<std::string> field_names() const override { return {"u", "v"}; }
  std::vector<double> lengths() const override;

 protected:
  Tensor stepped(const Tensor& state) const override;

 private:
  GrayScottOptions options_;
};

/// Incompressible flow with kinematic viscosity on a box whose last dimension is 2 pi long (cells
/// are squares or cubes), driven along x by forcing sin(2 pi waves y / length of y) - drag u.
struct FlowOptions {
  enum class Start : std::uint8_t {
    kRandom,       ///< solenoidal waves of random phase about the wave number `peak`
    kTaylorGreen,  ///< u = speed cos(x) sin(y), v = -speed sin(x) cos(y): decays exactly in 2-D
    kRest
  };
  double viscosity = 0.01;
  double forcing = 0.0;
  std::int64_t waves = 4;
  double drag = 0.0;
  Start start = Start::kRandom;
  double speed =
      1.0;  ///< of the random start: root mean square over all phases; Taylor-Green: amplitude
  std::int64_t peak = 4;  ///< wave number of the random start
  double fastest = 4.0;   ///< the largest speed that is expected
  double courant = 0.1;   ///< fastest dt / dx; errors from compressibility are O(courant^2)
  double interval = 0.0;  ///< above 0: dt is made to divide it
  std::uint64_t seed = 0;
};

/// Lattice Boltzmann method (D2Q9 or D3Q19) with two relaxation times (Ginzburg 2008): the even
/// moments relax by the viscosity, the odd ones at once, as in regularised schemes (Latt & Chopard
/// 2006), which keeps low viscosities stable. Incompressible equilibrium of He & Luo (1997),
/// forcing of Guo et al. (2002): second order in dx at courant ~ dx. Everything is local to
/// neighbouring points; there is no pressure equation to be solved, hence no sum over the domain.
class Flow : public Solver {
 public:
  /// `grid` has shape [N, domain..., any] with 2 or 3 domain dimensions, the last three being
  /// (z,) y, x. Throws UsageError for options that cannot be stable.
  Flow(const FlowOptions& options, const Layout& grid, DType dtype = DType::kFloat64);
  /// 2-D: u, v and vorticity dv/dx - du/dy; 3-D: u, v, w; u is along x, the last dimension.
  Tensor fields() const override;
  std::vector<std::string> field_names() const override;
  std::vector<double> lengths() const override;

 protected:
  Tensor stepped(const Tensor& state) const override;

 private:
  struct Numbers;
  FlowOptions options_;
  std::int64_t rows_ = 0;
  double dx_ = 0.0;
  double lattice_viscosity_ = 0.0;
};

}  // namespace tessera::solvers
