# The chat page as part of the binary: its own files, and the libraries of other hands from Debian's packages (docs/dependencies.md).
# Text is compressed here, once. The digest of all of it stands in the addresses, so a browser may keep what it has.
find_program(DSV4_GZIP gzip REQUIRED)
set(page_folder ${CMAKE_CURRENT_BINARY_DIR}/page)
set(page_names)   # What is served.
set(page_sums "")

# page_package_path(VARIABLE PACKAGE PATH): a file that a Debian package has.
function(page_package_path variable package path)
  if(NOT EXISTS ${path})
    message(FATAL_ERROR "the chat page: ${path}: no such file, wanted that of Debian's ${package}. "
                        "Install it: apt-get install --no-install-recommends ${package}")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  set(${variable} ${path} PARENT_SCOPE)
endfunction()
# page_file(NAME PATH): a file, as it is.
macro(page_file name path)
  configure_file(${path} ${page_folder}/${name} COPYONLY)
  list(APPEND page_names ${name})
endmacro()

file(GLOB own_files CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/page page/*.html page/*.css page/*.js page/*.svg)
foreach(name IN LISTS own_files)
  page_file(${name} ${CMAKE_CURRENT_SOURCE_DIR}/page/${name})
endforeach()

page_package_path(path libjs-marked /usr/share/javascript/marked/marked.umd.min.js)
page_file(marked.js ${path})
page_package_path(path libjs-katex /usr/share/javascript/katex/katex.js)
page_file(katex.js ${path})
page_package_path(path libjs-katex /usr/share/javascript/katex/contrib/mhchem.js)
page_file(mhchem.js ${path})
# Every browser that the page runs in reads woff2.
page_package_path(path libjs-katex /usr/share/javascript/katex/katex.min.css)
file(READ ${path} text)
string(REGEX REPLACE ",url\\([^)]*\\) format\\('(woff|truetype)'\\)" "" text "${text}")
file(CONFIGURE OUTPUT page/katex.css CONTENT "${text}" @ONLY)
list(APPEND page_names katex.css)
file(GLOB fonts RELATIVE /usr/share/fonts/truetype/katex /usr/share/fonts/truetype/katex/*.woff2)
list(LENGTH fonts num_fonts)
if(num_fonts EQUAL 0)
  page_package_path(path fonts-katex /usr/share/fonts/truetype/katex/KaTeX_Main-Regular.woff2)
endif()
foreach(font IN LISTS fonts)
  page_file(fonts/${font} /usr/share/fonts/truetype/katex/${font})
endforeach()

# The languages of code that answers have; highlight.js knows 180.
set(highlight /usr/share/nodejs/highlight.js/lib)
page_package_path(path node-highlight.js ${highlight}/highlight.js)
file(READ ${path} text)
set(script "const hljs = (() => { const module = {};\n${text}\nreturn module.exports; })();")
foreach(language IN ITEMS apache awk bash clojure cmake cpp cs css dart diff dns dockerfile dos elixir elm erlang fortran fsharp glsl go
                          gradle groovy haskell http ini java javascript json julia kotlin less lisp lua makefile markdown matlab
                          nginx nimrod nix objectivec ocaml perl php plaintext powershell properties protobuf python r ruby rust scala
                          scheme scss shell sql swift tcl tex typescript verilog vhdl x86asm xml yaml)
  page_package_path(path node-highlight.js ${highlight}/languages/${language}.js)
  file(READ ${path} text)
  string(APPEND script "\nhljs.registerLanguage(\"${language}\", (() => { const module = {};\n${text}\nreturn module.exports; })());")
endforeach()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/highlight.js "${script}")
page_file(highlight.js ${CMAKE_CURRENT_BINARY_DIR}/highlight.js)

foreach(name IN LISTS page_names)
  file(SHA256 ${page_folder}/${name} sum)
  string(APPEND page_sums "${name} ${sum}\n")
endforeach()
string(SHA256 digest "${page_sums}")
string(SUBSTRING ${digest} 0 16 DSV4_PAGE_DIGEST)
file(READ ${page_folder}/page.html text)
string(REPLACE "\"page/" "\"page/${DSV4_PAGE_DIGEST}/" text "${text}")
file(CONFIGURE OUTPUT page/page.html CONTENT "${text}" @ONLY)

set(i 0)
foreach(name IN LISTS page_names)
  set(stored ${page_folder}/${name})
  if(NOT name MATCHES "woff2$")
    execute_process(COMMAND ${DSV4_GZIP} -9nc ${stored} OUTPUT_FILE ${stored}.gz COMMAND_ERROR_IS_FATAL ANY)
    string(APPEND stored .gz)
  endif()
  string(APPEND DSV4_PAGE_BYTES "DSV4_PAGE_BYTES(${i}, \"${stored}\")  // ${name}\n")
  string(APPEND DSV4_PAGE_FILES "    {\"${name}\", dsv4_page_${i}, dsv4_page_${i}_end},\n")
  math(EXPR i "${i} + 1")
endforeach()
configure_file(page/page.cc.in page.cc @ONLY)
