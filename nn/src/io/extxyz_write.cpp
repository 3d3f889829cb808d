#include <charconv>
#include <fstream>
#include <tessera/nn/io/extxyz.hpp>

namespace tessera::io {

namespace {

/// The shortest text that reads as the same number.
void append(std::string& text, double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  text.append(buffer, end);
}

template <class Values>
std::string list(const Values& values) {
  std::string text;
  for (const double v : values) {
    if (!text.empty()) text += ' ';
    append(text, v);
  }
  return text;
}

void add_pair(std::string& line, const std::string& key, const std::string& value) {
  if (!line.empty()) line += ' ';
  const auto quoted = [](const std::string& text) {
    if (!text.empty() && text.find_first_of(" \t\n\r\"'=\\{}[],") == std::string::npos) return text;
    std::string q = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') q += '\\';
      q += c == '\n' || c == '\r' ? ' ' : c;
    }
    return q + '"';
  };
  line += quoted(key) + '=' + quoted(value);
}

void add_number(std::string& line, const std::string& key, double value) {
  std::string text;
  append(text, value);
  add_pair(line, key, text);
}

}  // namespace

struct ExtxyzWriter::State {
  std::unique_ptr<std::ofstream> file;
  std::ostream* stream = nullptr;
  std::string name;
  ExtxyzNames names;
};

ExtxyzWriter::ExtxyzWriter(const std::string& path, const ExtxyzNames& names, bool append)
    : state_(std::make_unique<State>()) {
  state_->file = std::make_unique<std::ofstream>(
      path, std::ios::binary | (append ? std::ios::app : std::ios::trunc));
  if (!*state_->file)
    throw IoError(str("extxyz: ", path, " cannot be opened for writing. Check the folder."));
  state_->stream = state_->file.get();
  state_->name = path;
  state_->names = names;
}

ExtxyzWriter::ExtxyzWriter(std::ostream& stream, const std::string& name, const ExtxyzNames& names)
    : state_(std::make_unique<State>()) {
  state_->stream = &stream;
  state_->name = name;
  state_->names = names;
}

ExtxyzWriter::~ExtxyzWriter() = default;
ExtxyzWriter::ExtxyzWriter(ExtxyzWriter&&) noexcept = default;

void ExtxyzWriter::write(const nn::Structure& s) {
  const auto n = static_cast<std::size_t>(s.atoms());
  bool fits = s.positions.size() == 3 * n && (s.forces.empty() || s.forces.size() == 3 * n);
  for (const nn::AtomColumn& c : s.columns)
    fits = fits && c.values.size() == n * static_cast<std::size_t>(c.width);
  if (!fits) {
    throw DataError(str("extxyz: a frame for ", state_->name, " has lists that do not fit its ", n,
                        " atoms. Give 3 coordinates (and forces) per atom."));
  }
  const ExtxyzNames& names = state_->names;
  std::string line;
  bool lattice = false;
  std::vector<double> cell;
  for (const nn::Vec3& v : s.cell.vectors) {
    for (const double x : v) {
      cell.push_back(x);
      lattice = lattice || x != 0.0;
    }
  }
  if (lattice) add_pair(line, "Lattice", list(cell));
  std::string properties = "species:S:1:pos:R:3";
  const bool forces = !s.forces.empty();
  if (forces) properties += ':' + names.forces + ":R:3";
  for (const nn::AtomColumn& c : s.columns)
    properties += ':' + c.name + ':' + c.type + ':' + std::to_string(c.width);
  add_pair(line, "Properties", properties);
  if (s.energy) add_number(line, names.energy, *s.energy);
  if (s.stress) add_pair(line, names.stress, list(*s.stress));
  if (s.virials) add_pair(line, names.virials, list(*s.virials));
  if (s.config_type != "Default") add_pair(line, "config_type", s.config_type);
  if (s.head != "Default") add_pair(line, "head", s.head);
  if (s.weight != 1.0) add_number(line, "config_weight", s.weight);
  if (s.energy_weight != 1.0) add_number(line, "config_energy_weight", s.energy_weight);
  if (s.forces_weight != 1.0) add_number(line, "config_forces_weight", s.forces_weight);
  if (s.stress_weight != 1.0) add_number(line, "config_stress_weight", s.stress_weight);
  if (s.virials_weight != 1.0) add_number(line, "config_virials_weight", s.virials_weight);
  for (const auto& [key, value] : s.info) add_pair(line, key, value);
  std::string flags;
  for (const bool p : s.cell.periodic) flags += flags.empty() ? (p ? "T" : "F") : (p ? " T" : " F");
  add_pair(line, "pbc", flags);

  std::string text = std::to_string(n) + '\n' + line + '\n';
  for (std::size_t i = 0; i < n; ++i) {
    text += nn::element_symbol(s.species[i]);
    for (std::size_t k = 0; k < 3; ++k) {
      text += ' ';
      append(text, s.positions[3 * i + k]);
    }
    for (std::size_t k = 0; forces && k < 3; ++k) {
      text += ' ';
      append(text, s.forces[3 * i + k]);
    }
    for (const nn::AtomColumn& c : s.columns) {
      const auto width = static_cast<std::size_t>(c.width);
      for (std::size_t k = 0; k < width; ++k) text += ' ' + c.values[i * width + k];
    }
    text += '\n';
    if (text.size() > (std::size_t{1} << 20)) {
      state_->stream->write(text.data(), static_cast<std::streamsize>(text.size()));
      text.clear();
    }
  }
  state_->stream->write(text.data(), static_cast<std::streamsize>(text.size()));
  state_->stream->flush();
  if (!*state_->stream)
    throw IoError(str("extxyz: ", state_->name, " cannot be written. Check space on the disk."));
}

void write_extxyz(const std::string& path,
                  const std::vector<nn::Structure>& structures,
                  const ExtxyzNames& names) {
  ExtxyzWriter writer(path, names);
  for (const nn::Structure& s : structures) writer.write(s);
}

}  // namespace tessera::io
