# cmake -D OUT=FILE.cc -D DIR=FOLDER -P embed.cmake: the files of src/server/page/ as src/server/embedded.h declares them.
# As numbers, since compilers limit the length of a string literal.
set(text "#include \"server/embedded.h\"\n\nnamespace nibble::server {\n\n")
foreach(pair kPage:index.html kOpenApi:openapi.json)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 name)
  list(GET pair 1 file)
  file(READ ${DIR}/${file} content HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${content}")
  string(REGEX REPLACE "((0x..,){20})" "\\1\n" bytes "${bytes}")
  string(APPEND text "static constexpr unsigned char ${name}Bytes[] = {\n${bytes}};\n"
         "const std::string_view ${name}(reinterpret_cast<const char*>(${name}Bytes), sizeof ${name}Bytes);\n\n")
endforeach()
string(APPEND text "}  // namespace nibble::server\n")
file(WRITE ${OUT} "${text}")
