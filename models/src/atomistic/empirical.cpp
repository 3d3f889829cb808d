#include <tessera/models/atomistic/empirical.hpp>
#include <tessera/nn/io/suggest.hpp>

#include "bodies.hpp"

namespace tessera::atomistic {

void StillingerWeber::compute(const LocalEdges& in, double* energies, double* gradients) const {
  const double range = cutoff();
  for_each_atom<std::vector<Arm>>(in.nodes, [&](std::int64_t i, std::vector<Arm>& arms) {
    arms.clear();
    for (std::int64_t e = in.begin[i]; e < in.begin[i + 1]; ++e) {
      const double* const v = in.vectors + 3 * e;
      const double r = length_of(v);
      if (r >= range) continue;
      const double s = p_.sigma / r;
      const double decay = std::exp(p_.sigma / (r - range));
      const double steric = p_.big_b * power(s, p_.p);
      const double attraction = power(s, p_.q);
      const double scale = p_.big_a * p_.epsilon * decay;
      const double by_decay = -p_.sigma / ((r - range) * (r - range));
      add_pair({scale * (steric - attraction), scale * ((p_.q * attraction - p_.p * steric) / r +
                                                        (steric - attraction) * by_decay)},
               r, v, energies + i, gradients + 3 * e);
      arms.push_back(make_arm(e, 0, r, p_.gamma * p_.sigma, range));
    }
    for (std::size_t a = 0; a < arms.size(); ++a) {
      for (std::size_t b = a + 1; b < arms.size(); ++b) {
        add_triplet(arms[a], arms[b], p_.lambda * p_.epsilon, 0.0, p_.cosine, in.vectors,
                    energies + i, gradients);
      }
    }
  });
}

void LennardJones::compute(const LocalEdges& in, double* energies, double* gradients) const {
  const auto unshifted = [&](double r) {
    const double s6 = power(p_.sigma / r, 6);
    return Radial{4.0 * p_.epsilon * s6 * (s6 - 1.0),
                  -24.0 * p_.epsilon * s6 * (2.0 * s6 - 1.0) / r};
  };
  const Radial end = unshifted(p_.cutoff);
  struct Nothing {};
  for_each_atom<Nothing>(in.nodes, [&](std::int64_t i, Nothing&) {
    for (std::int64_t e = in.begin[i]; e < in.begin[i + 1]; ++e) {
      const double* const v = in.vectors + 3 * e;
      const double r = length_of(v);
      if (r >= p_.cutoff) continue;
      Radial f = unshifted(r);
      f.value -= end.value + (r - p_.cutoff) * end.slope;
      f.slope -= end.slope;
      add_pair(f, r, v, energies + i, gradients + 3 * e);
    }
  });
}

std::shared_ptr<const Potential> make_potential(const std::string& name) {
  const std::string file = name.rfind("vashishta:", 0) == 0 ? name.substr(10) : "";
  if (!file.empty()) return std::make_shared<Vashishta>(VashishtaParameters::read(file));
  if (name == "vashishta") return std::make_shared<Vashishta>();
  if (name == "stillinger-weber") return std::make_shared<StillingerWeber>();
  if (name == "lennard-jones") return std::make_shared<LennardJones>();
  throw UsageError(str("potential: there is no `", name, "`.",
                       io::did_you_mean(name, {"vashishta", "stillinger-weber", "lennard-jones"}),
                       " Give vashishta, vashishta:FILE, stillinger-weber or lennard-jones."));
}

}  // namespace tessera::atomistic
