// Rules for the pages that ask through a browser: other people's pages must not make a server on this machine
// or network work.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace dsv4::server {

// Whether a request may name the server so (its Host field, with or without a port). It may be an address,
// localhost, a name without a dot, or one of `names` ("*": any). A page whose own name was made to lead here
// (DNS rebinding) says its name, which has a dot as all public ones have.
bool IsAllowedHost(std::string_view host, std::span<const std::string> names);

// Whether a page of the request's Origin may ask: none is said, it is the server's own page, or `allowed`
// ("*": any). A page of another site that hides its origin may look, but not post.
bool IsAllowedOrigin(const HttpRequest& request, std::string_view allowed);

// The name of this machine, as a request may spell it.
std::string MachineName();

}  // namespace dsv4::server
