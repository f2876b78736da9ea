#include "grammar/formats.h"

#define NIBBLE_DATE                                                                        \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|" \
  "02-(0[1-9]|1[0-9]|2[0-8]))"
#define NIBBLE_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define NIBBLE_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define NIBBLE_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

namespace nibble::grammar {
namespace {

struct Format {
  std::string_view name;
  std::string_view expression;
};

constexpr Format kFormats[] = {
    {"date", NIBBLE_DATE},
    {"time", NIBBLE_TIME},
    {"date-time", NIBBLE_DATE "T" NIBBLE_TIME},
    {"duration",
     "P([0-9]{1,9}W|[0-9]{1,9}D(T[0-9]{1,9}[HMS])?|[0-9]{1,9}Y([0-9]{1,9}M)?|T[0-9]{1,9}[HMS])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"ipv4", NIBBLE_BYTE "(\\." NIBBLE_BYTE "){3}"},
    {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
    {"hostname", NIBBLE_LABEL "(\\." NIBBLE_LABEL "){0,3}"},
    {"email",
     "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,31})?@" NIBBLE_LABEL "(\\." NIBBLE_LABEL "){1,3}"},
    {"uri",
     "(https?|ftp)://[A-Za-z0-9-]+(\\.[A-Za-z0-9-]+)*(:[0-9]{1,4})?(/"
     "[A-Za-z0-9._~!$&'()*+,;=:@-]*)*"
     "(\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(#[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?"},
};

}  // namespace

std::string_view ExpressionOfFormat(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return format.expression;
  }
  return "";
}

}  // namespace nibble::grammar
