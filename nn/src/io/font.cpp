#include "io/font.hpp"

namespace tessera::io {
namespace {

// From ' ' to '~', 7 rows each, a row as a digit in base 32: its bits are the pixels, the highest
// one is the leftmost.
// clang-format off
constexpr char kRows[] =
    "0000000" "4444404" "AAA0000" "AAVAVAA" "4FKE5U4" "OP248J3" "CIK8LID" "4480000"
    "2488842" "8422248" "04LEL40" "044V440" "0000C48" "000V000" "00000CC" "01248G0"
    "EHJLPHE" "4C4444E" "EH1248V" "V2421HE" "26AIV22" "VGU11HE" "68GUHHE" "V124888"
    "EHHEHHE" "EHHF12C" "0CC0CC0" "0CC0C48" "248G842" "00V0V00" "8421248" "EH12404"
    "EH1DLLE" "EHHHVHH" "UHHUHHU" "EHGGGHE" "SIHHHIS" "VGGUGGV" "VGGUGGG" "EHGNHHF"
    "HHHVHHH" "E44444E" "72222IC" "HIKOKIH" "GGGGGGV" "HRLLHHH" "HHPLJHH" "EHHHHHE"
    "UHHUGGG" "EHHHLID" "UHHUKIH" "FGGE11U" "V444444" "HHHHHHE" "HHHHHA4" "HHHLLLA"
    "HHA4AHH" "HHHA444" "V1248GV" "E88888E" "0G84210" "E22222E" "4AH0000" "000000V"
    "8420000" "00E1FHF" "GGMPHHU" "00EGGHE" "11DJHHF" "00EHVGE" "698S888" "0FHHF1E"
    "GGMPHHH" "40C444E" "20622IC" "GGIKOKI" "C44444E" "00QLLHH" "00MPHHH" "00EHHHE"
    "00UHUGG" "00DJF11" "00MPGGG" "00EGE1U" "88S8896" "00HHHJD" "00HHHA4" "00HHLLA"
    "00HA4AH" "00HHF1E" "00V248V" "2448442" "4444444" "8442448" "008L200";
// clang-format on

}  // namespace

bool glyph_pixel(char c, int column, int row) {
  if (c < ' ' || c > '~') c = '?';
  const char digit = kRows[(c - ' ') * kGlyphHeight + row];
  const int bits = digit <= '9' ? digit - '0' : digit - 'A' + 10;
  return bits >> (kGlyphWidth - 1 - column) & 1;
}

}  // namespace tessera::io
