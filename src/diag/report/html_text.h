// Text into HTML. Reports quote names from hostile files, so every text of a page goes through here.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::diag {

// For element content and double-quoted attributes. What a browser would not show as it is (control
// characters but new lines and tabs, direction overrides, bytes that are no UTF-8) becomes "\u{202e}",
// "\x{ff}".
std::string EscapeHtml(std::string_view text);

}  // namespace dsv4::diag
