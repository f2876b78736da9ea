// What is refused in a tokenizer.json, and that the message names the place.
#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace nibble::text {
namespace {

std::string ErrorOf(const std::string& json) {
  const auto file = ParseTokenizerFile(json, "t.json");
  return file.has_value() ? "accepted" : file.error().message;
}

// The fixture with the value at `pointer` (RFC 6901) replaced.
std::string With(const std::string& pointer, Json value) {
  Json json = SmallTokenizerJson();
  json[Json::json_pointer(pointer)] = std::move(value);
  return json.dump();
}

void ExpectRefusal(const std::string& json, const std::string& complaint) {
  const std::string error = ErrorOf(json);
  EXPECT_TRUE(error.starts_with("t.json: ")) << error;
  EXPECT_NE(error.find(complaint), std::string::npos) << error;
}

TEST(TokenizerFile, AcceptsTheFixture) {
  const auto file = ParseTokenizerFile(SmallTokenizerJson().dump(), "t.json");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->tokens.size(), 270u);
  EXPECT_EQ(file->bos_id, 0);
  ASSERT_EQ(file->merges.size(), 5u);
  EXPECT_EQ(file->merges[3].merged, file->ids.at("abcd"));
  EXPECT_EQ(file->byte_tokens[255], kFirstByte + 255);
}

TEST(TokenizerFile, RefusesWhatItDoesNotImplement) {
  ExpectRefusal(With("/model/type", "Unigram"), "model.type: \"Unigram\"");
  ExpectRefusal(With("/model/dropout", 0.1), "model.dropout: 0.1");
  ExpectRefusal(With("/model/continuing_subword_prefix", "##"), "model.continuing_subword_prefix");
  ExpectRefusal(With("/model/end_of_word_suffix", "</w>"), "model.end_of_word_suffix");
  ExpectRefusal(With("/model/byte_fallback", false), "model.byte_fallback: false");
  ExpectRefusal(With("/model/ignore_merges", true), "model.ignore_merges: true");
  ExpectRefusal(With("/model/novelty", 1), "model.novelty: unknown key");
  ExpectRefusal(With("/novelty", 1), "novelty: unknown key");
  ExpectRefusal(With("/version", "2.0"), "version: \"2.0\"");
  ExpectRefusal(With("/truncation", {{"max_length", 5}}), "truncation: {\"max_length\":5}");
  ExpectRefusal(With("/padding", Json::object()), "padding");
  ExpectRefusal(With("/normalizer", {{"type", "NFC"}}), "normalizer: {\"type\":\"NFC\"}");
  ExpectRefusal(With("/normalizer/content", "_"), "normalizer");
  ExpectRefusal(With("/pre_tokenizer", {{"type", "ByteLevel"}}), "pre_tokenizer");
  ExpectRefusal(With("/decoder", {{"type", "Fuse"}}), "decoder");
  ExpectRefusal(With("/post_processor", {{"type", "ByteLevel"}}), "post_processor.type");
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    ExpectRefusal(With(std::string("/added_tokens/1/") + flag, true),
                  std::string("added_tokens[1].") + flag);
  }
}

TEST(TokenizerFile, RefusesContradictions) {
  ExpectRefusal(With("/model/vocab/twin", 5), "share the id 5");
  ExpectRefusal(With("/model/vocab/far", 1 << 30), "id 1073741824 is outside");
  ExpectRefusal(With("/model/vocab/negative", -1), "id -1 is outside");
  ExpectRefusal(With("/model/vocab/text", "5"), "model.vocab[\"text\"]: expected an id");
  ExpectRefusal(With("/model/vocab/", 300), "the token with id 300 is empty");
  ExpectRefusal(With("/model/merges/5", {"a", "zz"}), "model.merges[5]: \"zz\" is not in");
  ExpectRefusal(With("/model/merges/5", {"a", "d"}), "model.merges[5]: \"ad\" is not in");
  ExpectRefusal(With("/model/merges/5", {"a", "b", "c"}), "model.merges[5]: expected two tokens");
  ExpectRefusal(With("/model/merges/5", "a b c"), "model.merges[5]: expected two tokens");
  ExpectRefusal(With("/model/merges/5", 7), "model.merges[5]: expected two tokens");
  ExpectRefusal(With("/added_tokens/1/id", 2), "added_tokens[1]: tokens");
  ExpectRefusal(With("/added_tokens/1/content", "<mark>"), "added_tokens[1]: tokens");
  ExpectRefusal(With("/added_tokens/3", {{"id", 300}}), "added_tokens[3]: expected id, content");
  ExpectRefusal(With("/model", 3), "model: expected an object");
  Json no_byte = SmallTokenizerJson();
  no_byte["model"]["vocab"].erase("<0x41>");
  ExpectRefusal(no_byte.dump(), "lacks the byte token <0x41>");
  Json no_bos = SmallTokenizerJson();
  no_bos["model"]["vocab"].erase("<bos>");
  no_bos["added_tokens"].erase(0);
  ExpectRefusal(no_bos.dump(), "no token <bos>");
}

TEST(TokenizerFile, RefusesBrokenJson) {
  ExpectRefusal("", "not valid JSON");
  ExpectRefusal("[1, 2]", "expected a JSON object");
  ExpectRefusal("{\"model\": {\"vocab\": {\"a\": 1}}} x", "not valid JSON");
  ExpectRefusal(R"({"version": "1.0", "version": "1.0"})", "repeats the key \"version\"");
  ExpectRefusal(R"({"model": {"vocab": {"a": 1}, "vocab": {"b": 2}}})",
                "repeats the key \"vocab\"");
  ExpectRefusal(std::string(100, '['), "nests deeper than 64");
  const std::string whole = SmallTokenizerJson().dump();
  for (size_t n_bytes = 0; n_bytes < whole.size(); n_bytes += 7) {
    EXPECT_NE(ErrorOf(whole.substr(0, n_bytes)), "accepted");
  }
}

}  // namespace
}  // namespace nibble::text
