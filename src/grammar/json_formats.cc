// The formats of strings that JSON Schema and pydantic name.
#include <array>

#include "grammar/json_text.h"

namespace dsv4::grammar {
namespace {

ByteSet BytesOf(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<uint8_t>(c));
  return set;
}

constexpr std::string_view kAlphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

Regex Digit() { return ByteRange('0', '9'); }
Regex Digits(int min, int max) { return Repeat(Digit(), min, max); }
Regex Hex() { return OneOf(BytesOf("0123456789abcdefABCDEF")); }
Regex Of(std::string_view more, int min, int max) {
  return Repeat(OneOf(BytesOf(kAlphanumeric) | BytesOf(more)), min, max);
}

Regex DateContent() {
  const Regex year = Either({Concat({Literal("000"), ByteRange('1', '9')}),
                             Concat({Literal("00"), ByteRange('1', '9'), Digit()}),
                             Concat({Literal("0"), ByteRange('1', '9'), Digits(2, 2)}),
                             Concat({ByteRange('1', '9'), Digits(3, 3)})});
  // Pairs of digits that are multiples of four, without 00.
  const Regex multiples_of_four = Either({Concat({Literal("0"), OneOf(BytesOf("48"))}),
                                          Concat({OneOf(BytesOf("2468")), OneOf(BytesOf("048"))}),
                                          Concat({OneOf(BytesOf("13579")), OneOf(BytesOf("26"))})});
  const Regex leap_year =
      Either({Concat({Digits(2, 2), multiples_of_four}), Concat({multiples_of_four, Literal("00")})});
  const Regex to_28 = Either({Concat({Literal("0"), ByteRange('1', '9')}), Concat({Literal("1"), Digit()}),
                              Concat({Literal("2"), ByteRange('0', '8')})});
  const Regex months =
      Either({Concat({Literal("0"), ByteRange('1', '9')}), Concat({Literal("1"), ByteRange('0', '2')})});
  const Regex months_of_30 = Either({Literal("01"), Concat({Literal("0"), ByteRange('3', '9')}),
                                     Concat({Literal("1"), ByteRange('0', '2')})});
  const Regex months_of_31 = Either({Literal("01"), Literal("03"), Literal("05"), Literal("07"),
                                     Literal("08"), Literal("10"), Literal("12")});
  const Regex usual = Concat({year, Literal("-"),
                              Either({Concat({months, Literal("-"), to_28}),
                                      Concat({months_of_30, Either({Literal("-29"), Literal("-30")})}),
                                      Concat({months_of_31, Literal("-31")})})});
  return Either({usual, Concat({leap_year, Literal("-02-29")})});
}

Regex TimeContent() {
  const Regex hour =
      Either({Concat({OneOf(BytesOf("01")), Digit()}), Concat({Literal("2"), ByteRange('0', '3')})});
  const Regex sixty = Concat({ByteRange('0', '5'), Digit()});
  return Concat({hour, Literal(":"), sixty, Literal(":"), sixty,
                 Optional(Concat({Literal("."), Digits(1, 9)})),
                 Either({Literal("Z"), Concat({OneOf(BytesOf("+-")), hour, Literal(":"), sixty})})});
}

// Labels of letters and digits, with hyphens inside, joined by points.
Regex HostContent(int min_labels) {
  const ByteSet letters = BytesOf("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
  const Regex ends = OneOf(letters);
  const Regex inner = Either({ends, Literal("-")});
  const Regex label = Concat({ends, Optional(Concat({Repeat(inner, 0, 30), ends}))});
  return Concat({label, Repeat(Concat({Literal("."), label}), min_labels - 1, 4)});
}

Regex EmailContent() {
  const Regex atom = Repeat(
      OneOf(BytesOf("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-/=?^_`{|}~")), 1,
      20);
  return Concat({atom, Repeat(Concat({Literal("."), atom}), 0, 2), Literal("@"), HostContent(2)});
}

Regex Ipv4Content() {
  const Regex octet = Either(
      {Digit(), Concat({ByteRange('1', '9'), Digit()}), Concat({Literal("1"), Digits(2, 2)}),
       Concat({Literal("2"), ByteRange('0', '4'), Digit()}), Concat({Literal("25"), ByteRange('0', '5')})});
  return Concat({octet, Repeat(Concat({Literal("."), octet}), 3, 3)});
}

Regex UuidContent() {
  const auto group = [](int digits) { return Repeat(Hex(), digits, digits); };
  return Concat({group(8), Literal("-"), group(4), Literal("-"), group(4), Literal("-"), group(4),
                 Literal("-"), group(12)});
}

Regex Ipv6Content() {
  const Regex group = Repeat(Hex(), 1, 4);
  const Regex front = Concat({group, Literal(":")});
  const Regex back = Concat({Literal(":"), group});
  std::vector<Regex> options = {Concat({Repeat(front, 7, 7), group})};
  // "::" stands for one group at least.
  for (int before = 1; before <= 7; ++before) {
    options.push_back(
        Concat({Repeat(front, before, before),
                before == 7 ? Literal(":") : Either({Literal(":"), Repeat(back, 1, 7 - before)})}));
  }
  options.push_back(Concat({Literal(":"), Either({Literal(":"), Repeat(back, 1, 7)})}));
  return Either(std::move(options));
}

// 0 to `last`, of at most three digits.
Regex UpTo(int last) {
  std::vector<Regex> options;
  for (int i = 0; i <= last; ++i) options.push_back(Literal(std::to_string(i)));
  return Either(std::move(options));
}

Regex PathContent() {
  const Regex escaped = Concat({Literal("%"), Repeat(Hex(), 2, 2)});
  return Repeat(Either({Of("-._~!$&'()*+,;=:@/", 1, 1), escaped}), 0, kUnbounded);
}

Regex PathQueryFragment() {
  return Concat({Optional(Concat({Literal("/"), PathContent()})),
                 Optional(Concat({Literal("?"), PathContent()})),
                 Optional(Concat({Literal("#"), PathContent()}))});
}

Regex UriContent() {
  const Regex scheme =
      Concat({ByteRange('a', 'z'), Repeat(OneOf(BytesOf("abcdefghijklmnopqrstuvwxyz0123456789+-.")), 0, 15)});
  return Concat({scheme, Literal("://"), HostContent(1),
                 Optional(Concat({Literal(":"), ByteRange('1', '9'), Digits(0, 3)})), PathQueryFragment()});
}

// One or more of the parts in their order, none left out between two.
Regex PartsInOrder(const std::vector<std::string_view>& letters) {
  std::vector<Regex> options;
  for (size_t first = 0; first < letters.size(); ++first) {
    Regex rest = Concat({});
    for (size_t i = letters.size(); i-- > first;) {
      const Regex part = Concat({Digits(1, 9), Literal(letters[i])});
      rest = i == first ? Concat({part, rest}) : Optional(Concat({part, rest}));
    }
    options.push_back(rest);
  }
  return Either(std::move(options));
}

Regex DurationContent() {
  const Regex time = Concat({Literal("T"), PartsInOrder({"H", "M", "S"})});
  const Regex date = PartsInOrder({"Y", "M", "D"});
  return Concat(
      {Literal("P"), Either({Concat({Digits(1, 9), Literal("W")}), Concat({date, Optional(time)}), time})});
}

Regex Base64Content(std::string_view two, bool padded) {
  const auto some = [&](int count) { return Of(two, count, count); };
  const Regex full = Repeat(some(4), 0, kUnbounded);
  const Regex last = padded ? Either({Concat({some(2), Literal("==")}), Concat({some(3), Literal("=")})})
                            : Either({some(2), some(3)});
  return Concat({full, Optional(last)});
}

Regex JsonPointerContent(Spelling spelling) {
  const Regex plain =
      SpelledChar(Complement({{0, 0x1F}, {'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'~', '~'}}), spelling);
  const Regex step = Either({plain, Literal("~0"), Literal("~1")});
  return Repeat(Concat({Literal("/"), Repeat(step, 0, kUnbounded)}), 0, kUnbounded);
}

Regex Network(const Regex& address, int bits) { return Concat({address, Literal("/"), UpTo(bits)}); }

Regex AnyText(Spelling spelling) { return Repeat(SpelledChar(AllChars(), spelling), 0, kUnbounded); }

struct Format {
  std::string_view name;
  Regex (*content)(Spelling spelling);
};

const std::array kFormats = {
    Format{"date-time",
           [](Spelling) {
             return Concat({DateContent(), Literal("T"), TimeContent()});
           }},
    Format{"date", [](Spelling) { return DateContent(); }},
    Format{"time", [](Spelling) { return TimeContent(); }},
    Format{"duration", [](Spelling) { return DurationContent(); }},
    Format{"uuid", [](Spelling) { return UuidContent(); }},
    Format{"email", [](Spelling) { return EmailContent(); }},
    Format{"idn-email", [](Spelling) { return EmailContent(); }},
    Format{"hostname", [](Spelling) { return HostContent(1); }},
    Format{"idn-hostname", [](Spelling) { return HostContent(1); }},
    Format{"ipv4", [](Spelling) { return Ipv4Content(); }},
    Format{"ipv6", [](Spelling) { return Ipv6Content(); }},
    Format{"ipvanyaddress",
           [](Spelling) {
             return Either({Ipv4Content(), Ipv6Content()});
           }},
    Format{"ipv4network", [](Spelling) { return Network(Ipv4Content(), 32); }},
    Format{"ipv4interface", [](Spelling) { return Network(Ipv4Content(), 32); }},
    Format{"ipv6network", [](Spelling) { return Network(Ipv6Content(), 128); }},
    Format{"ipv6interface", [](Spelling) { return Network(Ipv6Content(), 128); }},
    Format{"ipvanynetwork",
           [](Spelling) {
             return Either({Network(Ipv4Content(), 32), Network(Ipv6Content(), 128)});
           }},
    Format{"ipvanyinterface",
           [](Spelling) {
             return Either({Network(Ipv4Content(), 32), Network(Ipv6Content(), 128)});
           }},
    Format{"uri", [](Spelling) { return UriContent(); }},
    Format{"url", [](Spelling) { return UriContent(); }},
    Format{"iri", [](Spelling) { return UriContent(); }},
    Format{"multi-host-uri", [](Spelling) { return UriContent(); }},
    Format{"uri-reference",
           [](Spelling) {
             return Either({UriContent(), PathQueryFragment()});
           }},
    Format{"iri-reference",
           [](Spelling) {
             return Either({UriContent(), PathQueryFragment()});
           }},
    Format{"json-pointer", JsonPointerContent},
    Format{"byte", [](Spelling) { return Base64Content("+/", true); }},
    Format{"base64", [](Spelling) { return Base64Content("+/", true); }},
    Format{"base64url", [](Spelling) { return Base64Content("-_", false); }},
    // Any text: what it means is for its reader to say.
    Format{"binary", AnyText},
    Format{"directory-path", AnyText},
    Format{"file-path", AnyText},
    Format{"json-string", AnyText},
    Format{"password", AnyText},
    Format{"path", AnyText},
    Format{"regex", AnyText},
};

}  // namespace

std::string SupportedFormats() {
  std::string names;
  for (const Format& format : kFormats) {
    if (!names.empty()) names += ", ";
    names += format.name;
  }
  return names;
}

std::optional<Regex> FormatContent(std::string_view name, Spelling spelling) {
  // uuid1 to uuid8 are what pydantic calls versions of them.
  const bool is_uuid_version =
      name.size() == 5 && name.starts_with("uuid") && name[4] >= '1' && name[4] <= '8';
  if (is_uuid_version) {
    const auto group = [](int digits) { return Repeat(Hex(), digits, digits); };
    return Concat({group(8), Literal("-"), group(4), Literal("-"), Literal(name.substr(4)), group(3),
                   Literal("-"), OneOf(BytesOf("89ab")), group(3), Literal("-"), group(12)});
  }
  for (const Format& format : kFormats) {
    if (format.name == name) return format.content(spelling);
  }
  return std::nullopt;
}

}  // namespace dsv4::grammar
