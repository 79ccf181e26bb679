// Every line with a "want:" comment breaks one rule of .clang-tidy on purpose; clang_tidy_test.py demands
// that exactly these lines are reported. Not part of any target.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace dsv4::lint {

struct lower_struct {};                // want: readability-identifier-naming
enum class Colour { Red };             // want: readability-identifier-naming
constexpr int answer = 42;             // want: readability-identifier-naming
const int top_level = 1;               // want: readability-identifier-naming
void lowerFunction() {}                // want: readability-identifier-naming

class Holder {
 public:
  Holder(int value) : value(value) {}  // want: google-explicit-constructor
  int Value() const { return value; }
  virtual ~Holder() = default;

 private:
  int value;                           // want: readability-identifier-naming
};

class Derived : public Holder {
 public:
  explicit Derived(int value) : Holder(value) {}
  ~Derived() {}                        // want: modernize-use-override
};

int UseAfterMove() {
  int CamelVariable = 0;               // want: readability-identifier-naming
  std::string text = "moved";
  std::string other = std::move(text);
  CamelVariable += static_cast<int>(text.size());  // want: bugprone-use-after-move
  return CamelVariable + static_cast<int>(other.size());
}

bool Redundant(int a) {
  return a == a;                       // want: misc-redundant-expression
}

int Copies(const std::vector<std::string>& names) {
  int total = 0;
  for (const std::string name : names) {  // want: performance-for-range-copy
    total += static_cast<int>(name.size());
  }
  if (names.size() == 0) {             // want: readability-container-size-empty
    return -1;
  }
  return total;
}

}  // namespace dsv4::lint
