#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/nn/atoms/structure.hpp>
#include <tessera/nn/io/data_error.hpp>

namespace tessera::nn {

namespace {

struct Element {
  const char* symbol;
  double mass;
};

// Standard atomic weights (IUPAC 2021, abridged); of elements without one, the mass number of the
// longest-lived isotope.
constexpr std::array<Element, 119> kElements = {{
    {"X", 0.0},     {"H", 1.008},   {"He", 4.0026}, {"Li", 6.94},   {"Be", 9.0122}, {"B", 10.81},
    {"C", 12.011},  {"N", 14.007},  {"O", 15.999},  {"F", 18.998},  {"Ne", 20.180}, {"Na", 22.990},
    {"Mg", 24.305}, {"Al", 26.982}, {"Si", 28.085}, {"P", 30.974},  {"S", 32.06},   {"Cl", 35.45},
    {"Ar", 39.95},  {"K", 39.098},  {"Ca", 40.078}, {"Sc", 44.956}, {"Ti", 47.867}, {"V", 50.942},
    {"Cr", 51.996}, {"Mn", 54.938}, {"Fe", 55.845}, {"Co", 58.933}, {"Ni", 58.693}, {"Cu", 63.546},
    {"Zn", 65.38},  {"Ga", 69.723}, {"Ge", 72.630}, {"As", 74.922}, {"Se", 78.971}, {"Br", 79.904},
    {"Kr", 83.798}, {"Rb", 85.468}, {"Sr", 87.62},  {"Y", 88.906},  {"Zr", 91.224}, {"Nb", 92.906},
    {"Mo", 95.95},  {"Tc", 97.0},   {"Ru", 101.07}, {"Rh", 102.91}, {"Pd", 106.42}, {"Ag", 107.87},
    {"Cd", 112.41}, {"In", 114.82}, {"Sn", 118.71}, {"Sb", 121.76}, {"Te", 127.60}, {"I", 126.90},
    {"Xe", 131.29}, {"Cs", 132.91}, {"Ba", 137.33}, {"La", 138.91}, {"Ce", 140.12}, {"Pr", 140.91},
    {"Nd", 144.24}, {"Pm", 145.0},  {"Sm", 150.36}, {"Eu", 151.96}, {"Gd", 157.25}, {"Tb", 158.93},
    {"Dy", 162.50}, {"Ho", 164.93}, {"Er", 167.26}, {"Tm", 168.93}, {"Yb", 173.05}, {"Lu", 174.97},
    {"Hf", 178.49}, {"Ta", 180.95}, {"W", 183.84},  {"Re", 186.21}, {"Os", 190.23}, {"Ir", 192.22},
    {"Pt", 195.08}, {"Au", 196.97}, {"Hg", 200.59}, {"Tl", 204.38}, {"Pb", 207.2},  {"Bi", 208.98},
    {"Po", 209.0},  {"At", 210.0},  {"Rn", 222.0},  {"Fr", 223.0},  {"Ra", 226.0},  {"Ac", 227.0},
    {"Th", 232.04}, {"Pa", 231.04}, {"U", 238.03},  {"Np", 237.0},  {"Pu", 244.0},  {"Am", 243.0},
    {"Cm", 247.0},  {"Bk", 247.0},  {"Cf", 251.0},  {"Es", 252.0},  {"Fm", 257.0},  {"Md", 258.0},
    {"No", 259.0},  {"Lr", 262.0},  {"Rf", 267.0},  {"Db", 268.0},  {"Sg", 269.0},  {"Bh", 270.0},
    {"Hs", 269.0},  {"Mt", 277.0},  {"Ds", 281.0},  {"Rg", 282.0},  {"Cn", 285.0},  {"Nh", 286.0},
    {"Fl", 290.0},  {"Mc", 290.0},  {"Lv", 293.0},  {"Ts", 294.0},  {"Og", 294.0},
}};

const Element& element(std::int32_t number) {
  if (number < 0 || number >= static_cast<std::int32_t>(kElements.size()))
    throw UsageError(str("element: there is none with number ", number, ". Give 1 to 118."));
  return kElements[static_cast<std::size_t>(number)];
}

}  // namespace

bool Structure::is_isolated_atom() const {
  std::string name;
  for (const char c : config_type)
    if (c != '_' && c != '-') name += static_cast<char>(std::tolower(c));
  return atoms() == 1 && name == "isolatedatom";
}

const char* element_symbol(std::int32_t number) { return element(number).symbol; }
double element_mass(std::int32_t number) { return element(number).mass; }

std::int32_t element_number(const std::string& symbol) {
  std::int32_t number = -1;
  const char* const end = symbol.data() + symbol.size();
  const auto parsed = std::from_chars(symbol.data(), end, number);
  if (parsed.ec == std::errc{} && parsed.ptr == end)
    return number >= 0 && number < static_cast<std::int32_t>(kElements.size()) ? number : -1;
  std::string name;
  for (const char c : symbol) {
    const auto u = static_cast<unsigned char>(c);
    name += static_cast<char>(name.empty() ? std::toupper(u) : std::tolower(u));
  }
  for (std::size_t z = 0; z < kElements.size(); ++z)
    if (name == kElements[z].symbol) return static_cast<std::int32_t>(z);
  return -1;
}

std::vector<std::int32_t> wrap_positions(std::vector<double>& positions, const Cell& cell) {
  const kernels::Fractions fractions(cell.completed());
  std::vector<std::int32_t> moved(positions.size(), 0);
  for (std::size_t i = 0; i < positions.size(); i += 3) {
    const Vec3 f = fractions.of(&positions[i]);
    std::array<std::int32_t, 3> shift{};
    for (std::size_t k = 0; k < 3; ++k)
      if (cell.periodic[k]) shift[k] = static_cast<std::int32_t>(std::floor(f[k]));
    const Vec3 back = cell.shift(shift);
    for (std::size_t k = 0; k < 3; ++k) {
      positions[i + k] -= back[k];
      moved[i + k] = shift[k];
    }
  }
  return moved;
}

void check_structure(const Structure& structure, const std::string& where, double nearest) {
  const auto finite = [](const auto& values) {
    return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
  };
  const auto n = static_cast<std::size_t>(structure.atoms());
  if (structure.positions.size() != 3 * n ||
      (!structure.forces.empty() && structure.forces.size() != 3 * n)) {
    throw DataError(str(where, ": ", n, " atoms, ", structure.positions.size(), " coordinates and ",
                        structure.forces.size(), " force components do not fit. Give 3 per atom."));
  }
  if (!finite(structure.positions))
    throw DataError(
        str(where, ": a coordinate is not a finite number. Mend or leave out the frame."));
  if (!finite(structure.forces))
    throw DataError(str(where, ": a force is not a finite number. Mend or leave out the frame."));
  if ((structure.energy && !std::isfinite(*structure.energy)) ||
      (structure.stress && !finite(*structure.stress)) ||
      (structure.virials && !finite(*structure.virials))) {
    throw DataError(str(where,
                        ": energy, stress or virials are not finite numbers. Mend or leave "
                        "out the frame."));
  }
  for (const Vec3& v : structure.cell.vectors)
    if (!finite(v)) throw DataError(str(where, ": the lattice is not finite. Mend the frame."));
  try {
    structure.cell.completed();
    std::vector<std::int64_t> keys(n);
    std::iota(keys.begin(), keys.end(), 0);
    const auto list = kernels::find_neighbors(structure.positions, structure.atoms(),
                                              structure.cell, nearest, keys);
    if (!list.receivers.empty()) {
      const auto i = static_cast<std::size_t>(list.receivers[0]);
      const auto j = static_cast<std::size_t>(list.senders[0]);
      throw DataError(str(where, ": atoms ", i + 1, " (", element_symbol(structure.species[i]),
                          ") and ", j + 1, " (", element_symbol(structure.species[j]),
                          ") overlap (closer than ", nearest,
                          " A, images counted). Remove one, or check the lattice."));
    }
  } catch (const ShapeError& e) {
    throw DataError(str(where, ": ", e.what()));
  }
}

}  // namespace tessera::nn
