#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/io/suggest.hpp>

namespace tessera::io {

namespace {

using nn::AtomColumn;
using nn::Structure;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\v' || c == '\f'; }

/// Pieces between spaces, and commas in lists.
std::vector<std::string_view> words(std::string_view line, bool commas = true) {
  std::vector<std::string_view> list;
  const auto between = [commas](char c) { return is_space(c) || (commas && c == ','); };
  std::size_t i = 0;
  while (i < line.size()) {
    while (i < line.size() && between(line[i])) ++i;
    const std::size_t start = i;
    while (i < line.size() && !between(line[i])) ++i;
    if (i > start) list.push_back(line.substr(start, i - start));
  }
  return list;
}

/// As `what`, or nothing; Fortran's 1.0D-3 is a number, too.
std::optional<double> real(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0.0;
  const auto parse = [&](std::string_view t) {
    const auto r = std::from_chars(t.data(), t.data() + t.size(), value);
    return (r.ec == std::errc{} || r.ec == std::errc::result_out_of_range) &&
           r.ptr == t.data() + t.size();
  };
  if (parse(text)) return value;
  std::string fortran(text);
  for (char& c : fortran)
    if (c == 'd' || c == 'D') c = 'e';
  if (parse(fortran)) return value;
  return {};
}

std::optional<std::int64_t> integer(std::string_view text) {
  std::int64_t value = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value);
  if (r.ec != std::errc{} || r.ptr != text.data() + text.size()) return {};
  return value;
}

std::optional<bool> logical(std::string_view text) {
  for (const char* t : {"T", "True", "true", "TRUE", "1"})
    if (text == t) return true;
  for (const char* t : {"F", "False", "false", "FALSE", "0"})
    if (text == t) return false;
  return {};
}

/// At most so much of a text that is quoted in a message.
std::string shown(std::string_view text) {
  std::string s;
  for (const char c : text.substr(0, 40)) s += static_cast<unsigned char>(c) < 32 ? '?' : c;
  return text.size() > 40 ? s + "..." : s;
}

struct Property {
  std::string name;
  char type;
  std::int64_t width;
};

using Pairs = std::vector<std::pair<std::string, std::string>>;

}  // namespace

struct ExtxyzReader::State {
  std::unique_ptr<std::ifstream> file;
  std::istream* stream = nullptr;
  std::string name;
  ExtxyzOptions options;
  std::int64_t line_number = 0;
  std::string line;

  template <class... Text>
  [[noreturn]] void fail(const Text&... text) const {
    throw DataError(str("extxyz: ", name, ":", line_number, ": ", text...));
  }

  bool read_line() {
    if (!std::getline(*stream, line)) {
      if (stream->bad()) throw IoError(str("extxyz: ", name, " cannot be read. Check the disk."));
      return false;
    }
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    return true;
  }

  Pairs pairs() const;
  std::vector<Property> properties(const std::string& text) const;
  std::vector<double> numbers(const std::string& key, const std::string& value) const;
  double number(const std::string& key, const std::string& value) const;
  std::array<double, 9> matrix(const std::string& key, const std::string& value) const;
  std::string read_comment(Structure& s);
  void read_atoms(Structure& s, std::int64_t count, const std::vector<Property>& columns);
};

Pairs ExtxyzReader::State::pairs() const {
  Pairs list;
  std::size_t i = 0;
  // One piece: quoted, in brackets, or up to a space (a key: or up to =).
  const auto piece = [&](bool key) {
    std::string text;
    if (line[i] == '"' || line[i] == '\'') {
      const char quote = line[i++];
      while (i < line.size() && line[i] != quote) {
        if (line[i] == '\\' && i + 1 < line.size()) ++i;
        text += line[i++];
      }
      if (i == line.size())
        fail("a quote ", quote, " is not closed (", shown(text), "). Close it.");
      ++i;
      return text;
    }
    if (!key && (line[i] == '{' || line[i] == '[')) {
      int depth = 0;
      do {
        const char c = line[i++];
        if (c == '{' || c == '[') {
          ++depth;
          text += ' ';
        } else if (c == '}' || c == ']') {
          --depth;
          text += ' ';
        } else {
          text += c;
        }
      } while (depth > 0 && i < line.size());
      if (depth > 0) fail("a bracket is not closed (", shown(text), "). Close it.");
      const auto first = text.find_first_not_of(' ');
      if (first == std::string::npos) return std::string{};
      return text.substr(first, text.find_last_not_of(' ') - first + 1);
    }
    while (i < line.size() && !is_space(line[i]) && !(key && line[i] == '=')) text += line[i++];
    return text;
  };
  while (true) {
    while (i < line.size() && is_space(line[i])) ++i;
    if (i == line.size()) return list;
    const std::string key = piece(true);
    std::size_t next = i;
    while (next < line.size() && is_space(line[next])) ++next;
    if (next < line.size() && line[next] == '=') {
      i = next + 1;
      while (i < line.size() && is_space(line[i])) ++i;
      std::string value;
      if (i < line.size()) value = piece(false);
      if (key.empty()) fail("a value (", shown(value), ") has no key. Write key=value.");
      list.emplace_back(key, value);
    } else {
      list.emplace_back(key, "T");
    }
  }
}

std::vector<Property> ExtxyzReader::State::properties(const std::string& text) const {
  std::vector<std::string> fields(1);
  for (const char c : text) {
    if (c == ':') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (fields.size() % 3 != 0) {
    fail("Properties=", shown(text), " are not triples (", fields.size(),
         " fields). Write name:type:columns:...");
  }
  std::vector<Property> list;
  std::int64_t total = 0;
  for (std::size_t f = 0; f < fields.size(); f += 3) {
    const auto width = integer(fields[f + 2]);
    const bool type = fields[f + 1].size() == 1 &&
                      std::string("SRIL").find(fields[f + 1][0]) != std::string::npos;
    if (!type || !width || *width < 1 || *width > 10000 || fields[f].empty()) {
      fail("property ", shown(fields[f]), ":", shown(fields[f + 1]), ":", shown(fields[f + 2]),
           " has no meaning (types are S, R, I, L; columns a number from 1). Mend Properties.");
    }
    total += *width;
    if (total > 100000) fail("Properties name ", total, " columns. Mend Properties.");
    list.push_back({fields[f], fields[f + 1][0], *width});
  }
  return list;
}

std::vector<double> ExtxyzReader::State::numbers(const std::string& key,
                                                 const std::string& value) const {
  std::vector<double> list;
  for (const std::string_view word : words(value)) {
    const auto v = real(word);
    if (!v || !std::isfinite(*v)) {
      fail(key, " holds ", shown(word), ", which is not a finite number. Mend or remove ", key,
           ".");
    }
    list.push_back(*v);
  }
  return list;
}

double ExtxyzReader::State::number(const std::string& key, const std::string& value) const {
  const std::vector<double> list = numbers(key, value);
  if (list.size() != 1)
    fail(key, " holds ", list.size(), " numbers (", shown(value), "), not one. Mend or remove it.");
  return list[0];
}

std::array<double, 9> ExtxyzReader::State::matrix(const std::string& key,
                                                  const std::string& value) const {
  const std::vector<double> v = numbers(key, value);
  if (v.size() == 9) {
    std::array<double, 9> m{};
    std::copy(v.begin(), v.end(), m.begin());
    return m;
  }
  if (v.size() != 6) {
    fail(key, " holds ", v.size(),
         " numbers (needed are 9, or 6: xx yy zz yz xz xy). Mend or remove it.");
  }
  return {v[0], v[5], v[4], v[5], v[1], v[3], v[4], v[3], v[2]};
}

std::string ExtxyzReader::State::read_comment(Structure& s) {
  const Pairs list = pairs();
  const auto find = [&](const std::string& chosen,
                        std::initializer_list<const char*> usual) -> std::string {
    const auto has = [&](const std::string& key) {
      return std::any_of(list.begin(), list.end(), [&](const auto& p) { return p.first == key; });
    };
    if (!chosen.empty()) return has(chosen) ? chosen : "";
    for (const char* key : usual)
      if (has(key)) return key;
    return "";
  };
  const std::string energy = find(options.energy_key, {"REF_energy", "energy"});
  const std::string stress = find(options.stress_key, {"REF_stress", "stress"});
  const std::string virials = find(options.virials_key, {"REF_virials", "virials", "virial"});
  std::string columns = "species:S:1:pos:R:3";
  bool lattice = false;
  bool periodic = false;
  for (const auto& [key, value] : list) {
    if (key == "Properties") {
      columns = value;
    } else if (key == "Lattice" || key == "lattice" || key == "cell") {
      const std::vector<double> v = numbers(key, value);
      if (v.size() != 9) {
        fail(key, " holds ", v.size(),
             " numbers (needed are 9: the three vectors in turn). Mend the lattice.");
      }
      for (std::size_t k = 0; k < 9; ++k) s.cell.vectors[k / 3][k % 3] = v[k];
      lattice = true;
    } else if (key == "pbc") {
      const auto flags = words(value);
      if (flags.size() != 3) fail("pbc is ", shown(value), ". Write pbc=\"T T F\", say.");
      for (std::size_t k = 0; k < 3; ++k) {
        const auto flag = logical(flags[k]);
        if (!flag) fail("pbc is ", shown(value), ". Write pbc=\"T T F\", say.");
        s.cell.periodic[k] = *flag;
      }
      periodic = true;
    } else if (key == energy) {
      s.energy = number(key, value);
    } else if (key == stress) {
      s.stress = matrix(key, value);
    } else if (key == virials) {
      s.virials = matrix(key, value);
    } else if (key == "config_type") {
      s.config_type = value;
    } else if (key == "head") {
      s.head = value;
    } else if (key == "config_weight") {
      s.weight = number(key, value);
    } else if (key == "config_energy_weight") {
      s.energy_weight = number(key, value);
    } else if (key == "config_forces_weight") {
      s.forces_weight = number(key, value);
    } else if (key == "config_stress_weight") {
      s.stress_weight = number(key, value);
    } else if (key == "config_virials_weight") {
      s.virials_weight = number(key, value);
    } else {
      s.info.emplace_back(key, value);
    }
  }
  for (const double w :
       {s.weight, s.energy_weight, s.forces_weight, s.stress_weight, s.virials_weight}) {
    if (w < 0.0) fail("a weight is ", w, ". Give 0 or more.");
  }
  if (lattice && !periodic) s.cell.periodic = {true, true, true};
  for (std::size_t k = 0; k < 3; ++k) {
    const nn::Vec3& v = s.cell.vectors[k];
    if (s.cell.periodic[k] && v[0] == 0.0 && v[1] == 0.0 && v[2] == 0.0) {
      fail("the box repeats along vector ", k + 1, " (pbc), which is ",
           lattice ? "zero" : "not given", ". Write Lattice=\"9 numbers\", or set pbc to F there.");
    }
  }
  try {
    s.cell.completed();
  } catch (const ShapeError& e) {
    fail(e.what());
  }
  return columns;
}

void ExtxyzReader::State::read_atoms(Structure& s,
                                     std::int64_t count,
                                     const std::vector<Property>& columns) {
  std::string forces = options.forces_key;
  std::int64_t total = 0;
  int species = -1;
  int positions = -1;
  const auto has = [&](const std::string& column) {
    return std::any_of(columns.begin(), columns.end(),
                       [&](const Property& p) { return p.name == column; });
  };
  if (forces.empty()) {
    for (const char* key : {"REF_forces", "forces", "force"})
      if (forces.empty() && has(key)) forces = key;
  }
  std::vector<int> other(columns.size(), -1);
  bool labelled = false;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const Property& p = columns[c];
    total += p.width;
    const bool vector = p.type == 'R' && p.width == 3;
    const bool element = p.width == 1 && (p.type == 'S' || p.type == 'I');
    if (p.name == "pos" || (p.name == forces && !forces.empty())) {
      if (!vector) {
        fail("property ", p.name, ":", p.type, ":", p.width, " is not ", p.name,
             ":R:3. Mend Properties.");
      }
      (p.name == "pos" ? positions : other[c]) = p.name == "pos" ? static_cast<int>(c) : -2;
      labelled = labelled || p.name != "pos";
    } else if (element && (p.name == "species" ||
                           (!has("species") && (p.name == "Z" || p.name == "numbers" ||
                                                p.name == "element" || p.name == "elements")))) {
      species = static_cast<int>(c);
    } else {
      other[c] = static_cast<int>(s.columns.size());
      s.columns.push_back({p.name, p.type, p.width, {}});
    }
  }
  if (species < 0 || positions < 0) {
    fail("Properties have no ", species < 0 ? "species:S:1" : "pos:R:3",
         ". Name the columns of elements and positions.");
  }
  for (std::int64_t a = 0; a < count; ++a) {
    if (!read_line()) {
      fail("the file ends after ", a, " of ", count,
           " atoms. Check the number of atoms, or get the whole file.");
    }
    const auto fields = words(line, false);
    if (static_cast<std::int64_t>(fields.size()) != total) {
      fail("atom ", a + 1, " of ", count, " has ", fields.size(), " columns (Properties name ",
           total, "). Check the number of atoms and Properties.");
    }
    std::size_t at = 0;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const Property& p = columns[c];
      if (static_cast<int>(c) == species) {
        const std::int32_t z = nn::element_number(std::string(fields[at]));
        if (z < 0) {
          fail(shown(fields[at]), " is no element (atom ", a + 1,
               "). Write a symbol or an atomic number.");
        }
        s.species.push_back(z);
      } else if (static_cast<int>(c) == positions || other[c] == -2) {
        auto& list = static_cast<int>(c) == positions ? s.positions : s.forces;
        for (std::size_t k = 0; k < 3; ++k) {
          const auto v = real(fields[at + k]);
          if (!v || !std::isfinite(*v)) {
            fail("atom ", a + 1, ", ", p.name, ": ", shown(fields[at + k]),
                 " is not a finite number. Mend or leave out the frame.");
          }
          list.push_back(*v);
        }
      } else {
        auto& list = s.columns[static_cast<std::size_t>(other[c])].values;
        for (std::int64_t k = 0; k < p.width; ++k)
          list.emplace_back(fields[at + static_cast<std::size_t>(k)]);
      }
      at += static_cast<std::size_t>(p.width);
    }
  }
  if (!labelled) s.forces.clear();
}

ExtxyzReader::ExtxyzReader(const std::string& path, const ExtxyzOptions& options)
    : state_(std::make_unique<State>()) {
  state_->file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!*state_->file)
    throw IoError(str("extxyz: ", path, " cannot be opened for reading. Check the path."));
  state_->stream = state_->file.get();
  state_->name = path;
  state_->options = options;
}

ExtxyzReader::ExtxyzReader(std::istream& stream,
                           const std::string& name,
                           const ExtxyzOptions& options)
    : state_(std::make_unique<State>()) {
  state_->stream = &stream;
  state_->name = name;
  state_->options = options;
}

ExtxyzReader::~ExtxyzReader() = default;
ExtxyzReader::ExtxyzReader(ExtxyzReader&&) noexcept = default;

bool ExtxyzReader::next(Structure& structure) {
  State& state = *state_;
  structure = {};
  do {
    if (!state.read_line()) return false;
  } while (words(state.line).empty());
  structure.line = state.line_number;
  const auto head = words(state.line);
  const auto count = head.size() == 1 ? integer(head[0]) : std::nullopt;
  if (!count || *count < 0) {
    state.fail("expected is the number of atoms of a frame, not ", shown(state.line),
               ". Check that the frame before has as many atoms as it says.");
  }
  if (!state.read_line())
    state.fail("the file ends after the number of atoms. Get the whole file.");
  const auto columns = state.properties(state.read_comment(structure));
  state.read_atoms(structure, *count, columns);
  if (state.options.nearest > 0.0)
    nn::check_structure(structure, str("extxyz: ", state.name, ":", structure.line),
                        state.options.nearest);
  return true;
}

std::vector<Structure> read_extxyz(const std::string& path, const ExtxyzOptions& options) {
  ExtxyzReader reader(path, options);
  std::vector<Structure> list;
  Structure s;
  while (reader.next(s)) list.push_back(std::move(s));
  return list;
}

}  // namespace tessera::io
