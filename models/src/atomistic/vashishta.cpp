#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <tessera/models/atomistic/empirical.hpp>
#include <tessera/nn/atoms/structure.hpp>
#include <tessera/nn/io/data_error.hpp>

#include "bodies.hpp"

namespace tessera::atomistic {

namespace {

constexpr double kCoulomb = 14.399645;  // e^2 / (4 pi epsilon0), eV A
constexpr std::size_t kElements = 119;

Radial unshifted(const VashishtaParameters::Pair& p, double r) {
  const double inverse = 1.0 / r;
  const double inverse2 = inverse * inverse;
  const double inverse4 = inverse2 * inverse2;
  const double steric = p.h * power(inverse, p.eta);
  Radial f{steric, -p.eta * steric * inverse};
  const double charge = kCoulomb * p.zi * p.zj;
  if (charge != 0.0) {
    const double screened = charge * inverse * std::exp(-r / p.lambda1);
    f.value += screened;
    f.slope -= screened * (inverse + 1.0 / p.lambda1);
  }
  if (p.d != 0.0) {
    const double dipole = p.d * inverse4 * std::exp(-r / p.lambda4);
    f.value -= dipole;
    f.slope += dipole * (4.0 * inverse + 1.0 / p.lambda4);
  }
  const double dispersion = p.w * inverse4 * inverse2;
  f.value -= dispersion;
  f.slope += 6.0 * dispersion * inverse;
  return f;
}

struct Word {
  std::string text;
  std::int64_t line;
};

std::vector<Word> words_of(std::istream& stream) {
  std::vector<Word> words;
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    std::istringstream text(line.substr(0, line.find('#')));
    for (std::string word; text >> word;) words.push_back({word, number});
  }
  return words;
}

struct Entry {
  std::array<std::int32_t, 3> elements;
  std::array<double, 14> numbers;
  std::int64_t line;
};

std::vector<Entry> entries_of(std::istream& stream, const std::string& name) {
  constexpr std::size_t kWords = 17;
  const std::vector<Word> words = words_of(stream);
  std::vector<Entry> entries;
  for (std::size_t at = 0; at < words.size(); at += kWords) {
    const auto fail = [&](const Word& word, const std::string& why) {
      throw DataError(str("vashishta: ", name, ":", word.line, ": `", word.text, "` ", why,
                          ". An entry is three elements and 14 numbers."));
    };
    if (words.size() - at < kWords) fail(words[at], "begins an entry that is cut off");
    Entry entry{{}, {}, words[at].line};
    for (std::size_t k = 0; k < 3; ++k) {
      entry.elements[k] = nn::element_number(words[at + k].text);
      if (entry.elements[k] <= 0) fail(words[at + k], "is no element");
    }
    for (std::size_t k = 0; k < 14; ++k) {
      std::istringstream text(words[at + 3 + k].text);
      if (!(text >> entry.numbers[k]) || !text.eof()) fail(words[at + 3 + k], "is no number");
    }
    entries.push_back(entry);
  }
  if (entries.empty()) {
    throw DataError(
        str("vashishta: ", name, ":1: there are no parameters. Give a file of a potential."));
  }
  return entries;
}

}  // namespace

VashishtaParameters VashishtaParameters::silica() {
  static constexpr const char* kFile =
      "Si Si Si 0.82023 11 1.6 1.6 999 0.0 4.43 0.0 10.0 0.0 0.0 0.0 0.0 0.0\n"
      "O O O 743.848 7 -0.8 -0.8 999 22.1179 4.43 0.0 10.0 0.0 0.0 0.0 0.0 0.0\n"
      "O Si Si 163.859 9 -0.8 1.6 999 44.2357 4.43 0.0 10.0 20.146 1.0 2.60 0.0 -0.77714596\n"
      "Si O O 163.859 9 1.6 -0.8 999 44.2357 4.43 0.0 10.0 5.0365 1.0 2.60 0.0 -0.333333333333\n";
  std::istringstream stream(kFile);
  return read(stream, "SiO.1990.vashishta");
}

VashishtaParameters VashishtaParameters::read(const std::string& path) {
  std::ifstream stream(path);
  if (!stream)
    throw IoError(str("vashishta: cannot open ", path, ". Check the name of the parameter file."));
  return read(stream, path);
}

VashishtaParameters VashishtaParameters::read(std::istream& stream, const std::string& name) {
  const std::vector<Entry> entries = entries_of(stream, name);
  VashishtaParameters p;
  for (const Entry& e : entries)
    p.elements.insert(p.elements.end(), e.elements.begin(), e.elements.end());
  std::sort(p.elements.begin(), p.elements.end());
  p.elements.erase(std::unique(p.elements.begin(), p.elements.end()), p.elements.end());
  const std::size_t n = p.elements.size();
  const auto kind = [&](std::int32_t z) {
    return static_cast<std::size_t>(std::lower_bound(p.elements.begin(), p.elements.end(), z) -
                                    p.elements.begin());
  };
  p.pairs.resize(n * n);
  p.triplets.resize(n * n * n);
  std::vector<bool> known(n * n, false);
  for (const Entry& e : entries) {
    const std::size_t i = kind(e.elements[0]);
    const std::size_t j = kind(e.elements[1]);
    const std::size_t k = kind(e.elements[2]);
    const auto& x = e.numbers;
    p.triplets[(i * n + j) * n + k] = {x[9], x[12], x[13]};
    if (j != k) continue;
    Pair& pair = p.pairs[i * n + j];
    pair = {x[0], static_cast<int>(x[1]), x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[10], x[11]};
    known[i * n + j] = true;
    const bool charged = pair.zi * pair.zj != 0.0;
    if (!(pair.cutoff > 0.0) || pair.eta < 1 || pair.eta > 64 || pair.eta != x[1] ||
        (charged && !(pair.lambda1 > 0.0)) || (pair.d != 0.0 && !(pair.lambda4 > 0.0)) ||
        pair.r0 > pair.cutoff) {
      throw DataError(str("vashishta: ", name, ":", e.line,
                          ": an entry of a pair needs a positive cutoff of at least r0, a whole "
                          "eta from 1 to 64 and positive lengths. Mend the entry."));
    }
  }
  const auto missing = std::find(known.begin(), known.end(), false);
  if (missing != known.end()) {
    const auto at = static_cast<std::size_t>(missing - known.begin());
    const char* const a = nn::element_symbol(p.elements[at / n]);
    const char* const b = nn::element_symbol(p.elements[at % n]);
    throw DataError(str("vashishta: ", name, ":1: there is no entry ", a, " ", b, " ", b,
                        ". Every pair needs one."));
  }
  return p;
}

struct Vashishta::Tables {
  VashishtaParameters p;
  std::array<std::int64_t, kElements> kind_of{};
  std::vector<Radial> at_cutoff;
  double cutoff = 0.0;
};

Vashishta::Vashishta(const VashishtaParameters& parameters) {
  auto tables = std::make_unique<Tables>();
  tables->p = parameters;
  tables->kind_of.fill(-1);
  for (std::size_t k = 0; k < parameters.elements.size(); ++k) {
    tables->kind_of[static_cast<std::size_t>(parameters.elements[k])] =
        static_cast<std::int64_t>(k);
  }
  for (const auto& pair : parameters.pairs) {
    tables->at_cutoff.push_back(unshifted(pair, pair.cutoff));
    tables->cutoff = std::max(tables->cutoff, pair.cutoff);
  }
  tables_ = std::move(tables);
}

Vashishta::~Vashishta() = default;

double Vashishta::cutoff() const { return tables_->cutoff; }

bool Vashishta::knows(std::int32_t species) const {
  return species >= 0 && species < static_cast<std::int32_t>(kElements) &&
         tables_->kind_of[static_cast<std::size_t>(species)] >= 0;
}

void Vashishta::compute(const LocalEdges& in, double* energies, double* gradients) const {
  const Tables& t = *tables_;
  const auto n = static_cast<std::int64_t>(t.p.elements.size());
  const auto kind = [&](std::int64_t row) {
    return t.kind_of[static_cast<std::size_t>(in.species[row])];
  };
  for_each_atom<std::vector<Arm>>(in.nodes, [&](std::int64_t i, std::vector<Arm>& arms) {
    arms.clear();
    const std::int64_t own = kind(i);
    for (std::int64_t e = in.begin[i]; e < in.begin[i + 1]; ++e) {
      const double* const v = in.vectors + 3 * e;
      const double r = length_of(v);
      const std::int64_t other = kind(in.senders[e]);
      const auto which = static_cast<std::size_t>(own * n + other);
      const VashishtaParameters::Pair& pair = t.p.pairs[which];
      if (r >= pair.cutoff) continue;
      Radial f = unshifted(pair, r);
      const Radial& end = t.at_cutoff[which];
      f.value -= end.value + (r - pair.cutoff) * end.slope;
      f.slope -= end.slope;
      add_pair(f, r, v, energies + i, gradients + 3 * e);
      if (r < pair.r0) arms.push_back(make_arm(e, other, r, pair.gamma, pair.r0));
    }
    for (std::size_t a = 0; a < arms.size(); ++a) {
      for (std::size_t b = a + 1; b < arms.size(); ++b) {
        const auto& triplet =
            t.p.triplets[static_cast<std::size_t>((own * n + arms[a].kind) * n + arms[b].kind)];
        if (triplet.b == 0.0) continue;
        add_triplet(arms[a], arms[b], triplet.b, triplet.c, triplet.cosine, in.vectors,
                    energies + i, gradients);
      }
    }
  });
}

}  // namespace tessera::atomistic
