// EventStream: the data of server-sent events, from the pieces of a reply (HTML standard, 9.2.6).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4::apps {

class EventStream {
 public:
  // The data of each event that this piece ends. Lines end in LF or CR LF; comments and other fields are left out.
  std::vector<std::string> Take(std::string_view piece);

 private:
  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace dsv4::apps
