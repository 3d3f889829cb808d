#include "io/vtk_file.hpp"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <tessera/core/error.hpp>

#include "io/system_calls.hpp"

static_assert(std::endian::native == std::endian::little, "values are written little endian");

namespace tessera::io {
namespace {

using Section = VtkSlot::Section;

std::string intro(const std::string& kind) {
  return str("<?xml version=\"1.0\"?>\n<VTKFile type=\"", kind,
             "\" version=\"1.0\" byte_order=\"LittleEndian\" header_type=\"UInt64\">\n");
}

const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "Float64";
    case DType::kInt32:
      return "Int32";
    case DType::kInt64:
      return "Int64";
    case DType::kUInt8:
      return "UInt8";
    default:
      return "Float32";
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

const char* section_name(Section section) {
  switch (section) {
    case Section::kPointData:
      return "PointData";
    case Section::kCellData:
      return "CellData";
    case Section::kPoints:
      return "Points";
    default:
      return "Cells";
  }
}

/// The sections of a piece, or (with `prefix` P, without places of values) of an index.
std::string sections(const std::vector<VtkSlot>& slots,
                     const std::string& prefix,
                     const std::function<std::string(std::size_t)>& place) {
  std::string text;
  for (const Section section :
       {Section::kPointData, Section::kCellData, Section::kPoints, Section::kCells}) {
    const bool any = std::any_of(slots.begin(), slots.end(),
                                 [&](const VtkSlot& s) { return s.section == section; });
    // An index says nothing of cells.
    if (!any || (section == Section::kCells && !prefix.empty())) continue;
    text += str("<", prefix, section_name(section), ">\n");
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const VtkSlot& s = slots[i];
      if (s.section != section) continue;
      text +=
          str("<", prefix, "DataArray type=\"", type_name(s.dtype), "\" Name=\"", escaped(s.name),
              "\" NumberOfComponents=\"", s.components, "\"", place(i), "/>\n");
    }
    text += str("</", prefix, section_name(section), ">\n");
  }
  return text;
}

struct Names {
  std::string directory;  ///< of the pieces
  std::string stem;       ///< name of that directory
  std::string ending;

  explicit Names(const std::string& path) {
    const std::filesystem::path p(path);
    stem = p.stem().string();
    directory = (p.parent_path() / stem).string();
    ending = str(".", p.extension().string().substr(2));  // without the p
  }
  std::string piece(int rank) const {
    std::string number = std::to_string(rank);
    if (number.size() < 4) number.insert(0, 4 - number.size(), '0');
    return str(stem, "_", number, ending);
  }
};

}  // namespace

VtkFile::VtkFile(const std::string& path,
                 const VtkHeader& header,
                 const std::vector<VtkSlot>& slots,
                 const Collective& ranks)
    : slots_(slots) {
  constexpr std::int64_t kCount = 8;  // in front of each array: its bytes
  std::vector<std::int64_t> starts;
  std::int64_t end = 0;
  for (const VtkSlot& s : slots) {
    starts.push_back(end);
    end += kCount + s.bytes();
  }
  const std::string head = str(
      intro(header.kind), "<", header.kind, header.attributes, ">\n<Piece ", header.piece, ">\n",
      sections(
          slots, "",
          [&](std::size_t i) { return str(" format=\"appended\" offset=\"", starts[i], "\""); }),
      "</Piece>\n</", header.kind, ">\n<AppendedData encoding=\"raw\">\n_");
  const std::string tail = "\n</AppendedData>\n</VTKFile>\n";
  const std::int64_t begin = std::ssize(head);
  file_.emplace(path, head, begin + end + std::ssize(tail), ranks);
  ranks.together([&] {
    if (ranks.rank != 0) return;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const std::int64_t bytes = slots[i].bytes();
      file_->write(&bytes, kCount, begin + starts[i]);
    }
    file_->write(tail.data(), std::ssize(tail), begin + end);
  });
  for (const std::int64_t start : starts) offsets_.push_back(begin + start + kCount);
}

FileArray VtkFile::array(std::size_t i, const Shape& shape) const {
  return {.offset = offsets_[i], .shape = shape, .dtype = slots_[i].dtype};
}

void write_vtk_pieces(const std::string& path,
                      const VtkPiece& mine,
                      const std::vector<VtkSlot>& slots,
                      const std::vector<std::optional<std::string>>& places,
                      const Collective& ranks) {
  const Names names(path);
  const std::string own = names.directory + "/" + names.piece(ranks.rank);
  ranks.together([&] {
    if (ranks.rank != 0) return;
    check_replaceable(path);
    make_directories(names.directory);
  });
  std::optional<VtkFile> file;
  ranks.together([&] {
    if (mine.empty) return;
    std::vector<VtkSlot> own_slots;
    for (const VtkValues& a : mine.arrays) own_slots.push_back(a.slot);
    file.emplace(own, mine.header, own_slots, Collective{});
    for (std::size_t i = 0; i < mine.arrays.size(); ++i) {
      const auto& values = mine.arrays[i].values;
      file->file().write(values.data(), std::ssize(values), file->array(i, {}).offset);
    }
    file->file().sync();
  });
  // An index never stands over pieces of two runs.
  ranks.together([&] {
    if (ranks.rank == 0) remove_quietly(path);
  });
  ranks.together([&] {
    if (file) file->file().commit();
  });
  ranks.together([&] {
    if (ranks.rank != 0) return;
    std::string text = str(intro("P" + mine.header.kind), "<P", mine.header.kind,
                           " GhostLevel=\"0\"", mine.header.attributes, ">\n",
                           sections(slots, "P", [](std::size_t) { return std::string(); }));
    std::error_code ignored;
    for (int r = 0;
         r < ranks.size || std::filesystem::exists(names.directory + "/" + names.piece(r), ignored);
         ++r) {
      const std::string name = names.piece(r);
      if (r < ranks.size && places[static_cast<std::size_t>(r)]) {
        text += str("<Piece ", *places[static_cast<std::size_t>(r)], "Source=\"",
                    escaped(names.stem), "/", escaped(name), "\"/>\n");
      } else {
        remove_quietly(names.directory + "/" + name);  // of a run before
      }
    }
    text += str("</P", mine.header.kind, ">\n</VTKFile>\n");
    write_file_atomically(path, text);
  });
}

bool in_pieces(const std::string& path, const std::string& ending) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension != "." + ending && extension != ".p" + ending)
    throw UsageError(str("vtk: ", path, " ends in neither .", ending, " (one file) nor .p", ending,
                         " (a file per rank and an index). Name it so."));
  return extension[1] == 'p';
}

}  // namespace tessera::io
