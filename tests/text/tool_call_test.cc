#include "text/tool_call.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace nibble::text {
namespace {

Json Arguments(std::string_view call) {
  const Result<ToolCall> parsed = ParseToolCall(call);
  EXPECT_TRUE(parsed.has_value()) << (parsed.has_value() ? "" : parsed.error().message);
  return parsed.has_value() ? Json::parse(parsed->arguments) : Json();
}

// Case F1 of the field reports.
TEST(ToolCall, BareScalarsKeepTheirTypeAndQuotedTextStaysText) {
  EXPECT_EQ(Arguments(R"(call:f{a:42,b:-1.5e3,c:true,d:null,e:<|"|>null<|"|>,f:<|"|>007<|"|>})"),
            Json::parse(R"({"a":42,"b":-1500.0,"c":true,"d":null,"e":"null","f":"007"})"));
  EXPECT_EQ(Arguments("call:f{a:None,b:True,c:False,d:007,e:.5,f:1e,g:-}"),
            Json::parse(R"({"a":null,"b":true,"c":false,"d":"007","e":".5","f":"1e","g":"-"})"));
  EXPECT_EQ(ParseToolCall("call:f{n:123456789012345678901234567890}")->arguments,
            R"({"n":123456789012345678901234567890})");
}

// Case F2 of the field reports.
TEST(ToolCall, SpellingsOfJsonAndPythonAreUnderstood) {
  EXPECT_EQ(Arguments(R"(call:f{refs:["a",'b',<|"|>c<|"|>],tags:[bug,ui],o:{"m": "f"}})"),
            Json::parse(R"({"refs":["a","b","c"],"tags":["bug","ui"],"o":{"m":"f"}})"));
  EXPECT_EQ(Arguments(R"(call:f{key=[1,2],'k 2'="x\n\u00e9", s:'it\'s "so"'})"),
            Json::parse(R"({"key":[1,2],"k 2":"x\né","s":"it's \"so\""})"));
  EXPECT_EQ(Arguments(R"(call:f{title:"A" and "B",<|"|>k<|"|>:1,})"),
            Json::parse(R"({"title":"\"A\" and \"B\"","k":1})"));
  EXPECT_EQ(Arguments(" call: f {} "), Json::object());
}

// Case F3 of the field reports.
TEST(ToolCall, NestingAndQuotesAndBracesInText) {
  EXPECT_EQ(Arguments("call:run{cmd:<|\"|>echo \"a,{b}\" > 'c'\n<|\"|>,"
                      "q:{$and:[{a:{$gt:1}},{b:[1,2]}]}}"),
            Json::parse(R"({"cmd":"echo \"a,{b}\" > 'c'\n",
                            "q":{"$and":[{"a":{"$gt":1}},{"b":[1,2]}]}})"));
}

TEST(ToolCall, WhatIsNoCallIsRefusedWithItsPlace) {
  for (const char* call :
       {"", "f{}", "call:f", "call:{}", "call:f{", "call:f{a}", "call:f{a:}", "call:f{a:1",
        "call:f{a:[1,}", "call:f{a:1}x", "call:f{a:<|\"|>x}", "call:f{a:{b:1}c}", "call:f{,}"}) {
    const Result<ToolCall> parsed = ParseToolCall(call);
    ASSERT_FALSE(parsed.has_value()) << call;
    EXPECT_NE(parsed.error().message.find("expected"), std::string::npos) << parsed.error().message;
  }
  EXPECT_FALSE(ParseToolCall("call:f{a:" + std::string(100'000, '[')).has_value());
}

}  // namespace
}  // namespace nibble::text
