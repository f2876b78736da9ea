// Right values: jinja2 on the official template of the larger models, set up as `transformers`
// does.
#include "text/chat.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fixture.h"
#include "text/chat_value.h"

namespace nibble::text {
namespace {

const ChatOptions kLarger{.closes_empty_thought = true};

Json Parsed(const char* json) { return Json::parse(json); }

std::string Rendered(const char* messages, const Json& tools = nullptr,
                     const ChatOptions& options = kLarger) {
  const auto text = RenderChat(Parsed(messages), tools, options);
  return text.has_value() ? *text : "error: " + text.error().message;
}

constexpr const char* kCallAndReply = R"([
  {"role": "user", "content": " Weather? "},
  {"role": "assistant", "content": null, "reasoning": "Hm.", "tool_calls": [{"id": "1",
   "function": {"name": "f", "arguments": {"b": [1, 2.5, null], "A": {"x": true}}}}]},
  {"role": "tool", "tool_call_id": "1", "content": "ok"}])";

TEST(RenderChat, UserTurn) {
  const char* messages = R"([{"role": "user", "content": " Weather? "}])";
  EXPECT_EQ(Rendered(messages),
            "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
  EXPECT_EQ(Rendered(messages, nullptr, {}), "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\n");
  EXPECT_EQ(Rendered(messages, nullptr, {.add_generation_prompt = false}),
            "<bos><|turn>user\nWeather?<turn|>\n");
}

TEST(RenderChat, SystemTurnWithThinking) {
  EXPECT_EQ(Rendered(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])",
                     nullptr, {.enable_thinking = true, .closes_empty_thought = true}),
            "<bos><|turn>system\n<|think|>\nS<turn|>\n<|turn>user\nU<turn|>\n<|turn>model\n");
}

TEST(RenderChat, CallAndReplyStayInTheModelsTurn) {
  EXPECT_EQ(Rendered(kCallAndReply),
            "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\n<|channel>thought\nHm.\n<channel|>"
            "<|tool_call>call:f{A:{x:true},b:[1,2.5,None]}<tool_call|>"
            "<|tool_response>response:f{value:<|\"|>ok<|\"|>}<tool_response|>");
}

TEST(RenderChat, ArgumentsAsJsonTextAreAnObject) {
  Json messages = Parsed(kCallAndReply);
  Json& arguments = messages[1]["tool_calls"][0]["function"]["arguments"];
  arguments = arguments.dump();
  EXPECT_EQ(RenderChat(messages, nullptr, kLarger).value(), Rendered(kCallAndReply));
  arguments = "not json";
  EXPECT_NE(RenderChat(messages, nullptr, kLarger)->find("call:f{not json}"), std::string::npos);
}

TEST(RenderChat, Tools) {
  const Json tools = Parsed(R"([{"type": "function", "function": {"name": "f", "description": "D",
    "parameters": {"type": "object", "properties": {
      "b": {"type": "array", "items": {"type": "number"}},
      "A": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
      "c": {"type": "string", "enum": ["u", "v"], "nullable": true}}, "required": ["b"]}}}])");
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": "U"}])", tools, {}),
            "<bos><|turn>system\n<|tool>declaration:f{description:<|\"|>D<|\"|>,parameters:{"
            "properties:{A:{properties:{x:{type:<|\"|>BOOLEAN<|\"|>}},required:[<|\"|>x<|\"|>],"
            "type:<|\"|>OBJECT<|\"|>},b:{items:{type:<|\"|>NUMBER<|\"|>},type:<|\"|>ARRAY<|\"|>},"
            "c:{enum:[<|\"|>u<|\"|>,<|\"|>v<|\"|>],nullable:true,type:<|\"|>STRING<|\"|>}},"
            "required:[<|\"|>b<|\"|>],type:<|\"|>OBJECT<|\"|>}}<tool|><turn|>\n"
            "<|turn>user\nU<turn|>\n<|turn>model\n");
}

TEST(RenderChat, RefusalsNameThePlace) {
  EXPECT_EQ(Rendered("[]"), "error: messages: expected a list, not empty");
  EXPECT_EQ(Rendered("3"), "error: messages: expected a list, not empty");
  EXPECT_EQ(Rendered("[7]"), "error: messages[0]: expected a role");
  EXPECT_EQ(Rendered(R"([{"role": "narrator"}])"),
            "error: messages[0]: unknown role \"narrator\", expected one of system, developer, "
            "user, assistant, tool");
  EXPECT_EQ(Rendered(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
            "error: messages[0].content[0]: content of type \"image_url\" is not supported, only "
            "text");
  EXPECT_EQ(Rendered(R"([{"role": "user", "tool_calls": [{}]}])"),
            "error: messages[0].tool_calls: not by an assistant");
  EXPECT_EQ(Rendered(R"([{"role": "user"}])", Parsed(R"([{"type": "custom"}])")),
            "error: tools[0].type: \"custom\" is not supported, expected \"function\"");
}

// Right values: Python's str().
TEST(FormatValue, PrintsScalarsAsPython) {
  for (const char* number :
       {"0.1", "1.0", "-0.0", "0.0001", "1e-05", "123456789.125", "1e+16", "1234567890123456.0",
        "1.7976931348623157e+308", "5e-324", "42", "-7", "18446744073709551615"}) {
    EXPECT_EQ(FormatValue(Json::parse(number), false), number);
  }
  EXPECT_EQ(FormatValue(nullptr, false), "None");
  EXPECT_EQ(FormatValue(true, false), "true");
  EXPECT_EQ(FormatValue(Json{{"b", 1}, {"A", "x"}}, true),
            "{<|\"|>A<|\"|>:<|\"|>x<|\"|>,<|\"|>b<|\"|>:1}");
}

TEST(ClosesEmptyThought, ReadsTheTemplate) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "chat_template";
  std::filesystem::create_directories(dir);
  const auto write = [&](const char* name, const std::string& content) {
    std::ofstream(dir / name) << content;
  };
  write("chat_template.jinja", R"({{ '<|turn>model\n' }}{{ '<|channel>thought\n<channel|>' }})");
  EXPECT_TRUE(ClosesEmptyThought(dir).value());
  write("chat_template.jinja", R"({{ '<|turn>model\n' }})");
  EXPECT_FALSE(ClosesEmptyThought(dir).value());
  write("chat_template.jinja", "<start_of_turn>");
  EXPECT_FALSE(ClosesEmptyThought(dir).has_value());
  std::filesystem::remove(dir / "chat_template.jinja");
  write("tokenizer_config.json", "{}");
  EXPECT_FALSE(ClosesEmptyThought(dir).has_value());
  write("tokenizer_config.json", R"({"chat_template": "<|turn>"})");
  EXPECT_FALSE(ClosesEmptyThought(dir).value());
  EXPECT_FALSE(ClosesEmptyThought(kTinyModel).value());
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace nibble::text
