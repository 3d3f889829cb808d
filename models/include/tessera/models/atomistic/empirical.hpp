#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <tessera/models/atomistic/potential.hpp>
#include <vector>

namespace tessera::atomistic {

/// Parameters of pairs and triplets of a Vashishta potential, by element.
struct VashishtaParameters {
  /// Of a pair (either order): H/r^eta + q/r exp(-r/lambda1) - D/r^4 exp(-r/lambda4) - W/r^6, with
  /// q = Zi Zj e^2.
  struct Pair {
    double h = 0;   ///< eV A^eta
    int eta = 1;    ///< at least 1
    double zi = 0;  ///< charges, e
    double zj = 0;
    double lambda1 = 0;  ///< A
    double d = 0;        ///< eV A^4
    double lambda4 = 0;  ///< A
    double w = 0;        ///< eV A^6
    double cutoff = 0;   ///< A
    double gamma = 0;    ///< A; of triplets
    double r0 = 0;       ///< A; range of triplets; 0: none
  };
  /// Of neighbours j, k of a centre i: b exp(gamma/(rij - r0) + gamma/(rik - r0)) x^2 / (1 + c
  /// x^2), x = cos(angle) - cosine.
  struct Triplet {
    double b = 0;  ///< eV
    double c = 0;
    double cosine = 0;
  };
  std::vector<std::int32_t> elements;  ///< atomic numbers
  std::vector<Pair> pairs;             ///< [centre, neighbour]
  std::vector<Triplet> triplets;       ///< [centre, neighbour, neighbour]

  /// SiO2 of Vashishta, Kalia, Rino and Ebbsjo, Phys. Rev. B 41, 12197 (1990); numbers as in
  /// `SiO.1990.vashishta` by A. Thompson, which is spread with LAMMPS.
  static VashishtaParameters silica();
  /// Reads a file in the format of LAMMPS (units metal): entries of 17 words, `element1 element2
  /// element3 H eta Zi Zj lambda1 D lambda4 W rc B gamma r0 C cos(theta)`, over any lines, comments
  /// after #. Pair numbers are those of entries with element2 = element3, the others give B, C and
  /// cos(theta). Throws IoError, and DataError with the line.
  static VashishtaParameters read(const std::string& path);
  static VashishtaParameters read(std::istream& stream, const std::string& name);
};

/// Two- and three-body potential. Pairs are shifted so that energy and force vanish at their
/// cutoff.
class Vashishta : public EdgePotential {
 public:
  explicit Vashishta(const VashishtaParameters& parameters = VashishtaParameters::silica());
  ~Vashishta() override;
  std::string name() const override { return "vashishta"; }
  double cutoff() const override;
  bool knows(std::int32_t species) const override;

 protected:
  void compute(const LocalEdges& in, double* energies, double* gradients) const override;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

/// Stillinger and Weber, Phys. Rev. B 31, 5262 (1985), of one element.
struct StillingerWeberParameters {
  std::int32_t element = 14;
  double epsilon = 2.1683;  ///< eV
  double sigma = 2.0951;    ///< A
  double a = 1.80;          ///< cutoff = a sigma
  double lambda = 21.0;
  double gamma = 1.20;
  double cosine = -1.0 / 3.0;
  double big_a = 7.049556277;
  double big_b = 0.6022245584;
  int p = 4;
  int q = 0;
};

class StillingerWeber : public EdgePotential {
 public:
  explicit StillingerWeber(const StillingerWeberParameters& parameters = {}) : p_(parameters) {}
  std::string name() const override { return "stillinger-weber"; }
  double cutoff() const override { return p_.a * p_.sigma; }
  bool knows(std::int32_t species) const override { return species == p_.element; }

 protected:
  void compute(const LocalEdges& in, double* energies, double* gradients) const override;

 private:
  StillingerWeberParameters p_;
};

/// 4 epsilon ((sigma/r)^12 - (sigma/r)^6) of one element, shifted so that energy and force vanish
/// at the cutoff. The default is argon (Rowley, Nicholson and Parsonage 1975).
struct LennardJonesParameters {
  std::int32_t element = 18;
  double epsilon = 0.0103235;  ///< eV
  double sigma = 3.405;        ///< A
  double cutoff = 8.5;         ///< A
};

class LennardJones : public EdgePotential {
 public:
  explicit LennardJones(const LennardJonesParameters& parameters = {}) : p_(parameters) {}
  std::string name() const override { return "lennard-jones"; }
  double cutoff() const override { return p_.cutoff; }
  bool knows(std::int32_t species) const override { return species == p_.element; }

 protected:
  void compute(const LocalEdges& in, double* energies, double* gradients) const override;

 private:
  LennardJonesParameters p_;
};

/// `vashishta` (or `vashishta:FILE`), `stillinger-weber`, `lennard-jones`. Throws UsageError for
/// other names.
std::shared_ptr<const Potential> make_potential(const std::string& name);

}  // namespace tessera::atomistic
