// The chat template that a model is used with, and the tokens of what it renders.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "chat/chat.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

namespace argent {

// {"bos_token": "<s>", ...} of the tokenizer keys that the file has.
std::map<std::string, std::string> special_tokens(const gguf::File& file);

// The template of --chat-template (`flag`, a file or a built-in name), else the file's, else the built-in that the
// vocabulary's control tokens call for. not_found: none of them. `sample`: as ChatFormat::from_source.
Result<ChatFormat> load_chat_format(const gguf::File& file, const std::string& flag, const ChatRequest& sample = {});

// Where load_chat_format would find it: "--chat-template ...", "file", "built-in gemma", or "" for none.
std::string chat_format_source(const gguf::File& file, const std::string& flag);

// A rendered prompt from byte `begin` on as tokens: only what the template wrote can be control tokens.
std::vector<int32_t> encode_rendered(const Tokenizer& tokenizer, const Rendered& rendered, size_t begin = 0);

// A whole prompt: as encode_rendered, with one BOS in front where the tokenizer wants one and the template wrote none.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const Rendered& rendered);

// --var NAME=JSON, as often as given, as one object. A value that is no JSON is an error that says so.
Result<Json> parse_variables(const std::vector<std::string>& assignments);

}  // namespace argent
