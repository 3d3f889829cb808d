#pragma once

#include <cstdint>
#include <string>
#include <tessera/nn/atoms/structure.hpp>
#include <vector>

/// How the atoms of silica lie to each other: what tells a sound glass from a bad one.
namespace tessera::atomistic {

/// How many atoms of one element lie at a distance from one of another, over the number that evenly
/// spread atoms would give.
struct RadialDistribution {
  std::vector<double> r;  ///< middles of shells, A
  std::vector<double> g;
  /// Distance of the highest value, between shells by a parabola; 0 where there are no pairs.
  double peak() const;
};

/// Of elements `a` around `b`, in shells of `width` up to `reach` (A), mean over frames. Throws
/// UsageError for widths that are not positive, ShapeError for frames without volume.
RadialDistribution radial_distribution(const std::vector<nn::Structure>& frames,
                                       std::int32_t a,
                                       std::int32_t b,
                                       double reach = 8.0,
                                       double width = 0.05);

/// Angles in degrees.
struct AngleStatistics {
  double mean = 0.0;
  double deviation = 0.0;
};

/// Structure of silica. Amorphous at 300 K, by diffraction: 2.20 g/cm^3, every Si with four O and
/// every O with two Si, distances 1.61 (Si-O), 2.63 (O-O) and 3.08 (Si-Si) A, angles Si-O-Si near
/// 145 and O-Si-O of 109.5 degrees (Mozzi and Warren 1969; Wright 1994).
struct SilicaOrder {
  double density = 0.0;        ///< g/cm^3
  double si_with_four = 0.0;   ///< share of Si with four O closer than `bond`
  double oxygen_with_two = 0;  ///< share of O with two Si closer than `bond`
  RadialDistribution si_o, o_o, si_si;
  AngleStatistics si_o_si, o_si_o;  ///< over all pairs of bonds at an atom
  /// One line of text.
  std::string summary() const;
};

/// Mean over frames; `bond` in A lies in the gap behind the first peak of Si-O. Throws UsageError
/// without frames that hold Si and O.
SilicaOrder silica_order(const std::vector<nn::Structure>& frames, double bond = 2.2);

}  // namespace tessera::atomistic
