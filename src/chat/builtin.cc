#include "chat/builtin.h"

namespace argent {
namespace {

// ChatML. Tools as the Hermes models were trained: listed in the system message, called in <tool_call> tags.
constexpr std::string_view kChatML = R"jinja({%- set ns = namespace(system='', first=0) -%}
{%- if messages and messages[0].role == 'system' -%}
  {%- set ns.system = messages[0].content -%}
  {%- set ns.first = 1 -%}
{%- endif -%}
{%- if tools -%}
  {{- '<|im_start|>system\n' -}}
  {%- if ns.system -%}{{- ns.system + '\n\n' -}}{%- endif -%}
  {{- '# Tools\n\nYou may call one or more functions to help with the query. Their signatures are within <tools></tools> tags:\n<tools>' -}}
  {%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
  {{- '\n</tools>\n\nFor each call, write a JSON object with the name and the arguments of the function within <tool_call></tool_call> tags:\n<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call><|im_end|>\n' -}}
{%- elif ns.first -%}
  {{- '<|im_start|>system\n' + ns.system + '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages[ns.first:] -%}
  {%- if message.role == 'tool' -%}
    {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
    {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
  {%- else -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content -}}
    {%- for call in message.tool_calls or [] -%}
      {%- if message.content or not loop.first -%}{{- '\n' -}}{%- endif -%}
      {{- '<tool_call>\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})jinja";

// Llama 3. Tools as JSON in the first user message, calls as one JSON object, results under the role ipython.
constexpr std::string_view kLlama3 = R"jinja({{- bos_token | default('') -}}
{%- set ns = namespace(first_user=true) -%}
{%- for message in messages -%}
  {%- set role = 'ipython' if message.role == 'tool' else message.role -%}
  {{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' -}}
  {%- if message.tool_calls -%}
    {%- if message.tool_calls | length != 1 -%}{{- raise_exception('This model makes one tool call at a time.') -}}{%- endif -%}
    {%- set call = message.tool_calls[0].function -%}
    {{- '{"name": ' + (call.name | tojson) + ', "parameters": ' + (call.arguments | tojson) + '}' -}}
  {%- else -%}
    {%- if tools and message.role == 'user' and ns.first_user -%}
      {%- set ns.first_user = false -%}
      {{- 'Given the following functions, answer with a JSON for a function call with its proper arguments that best answers the prompt.\n\nAnswer in the form {"name": function name, "parameters": dictionary of argument name and its value}. Do not use variables.\n\n' -}}
      {%- for tool in tools -%}{{- (tool | tojson(indent=4)) + '\n\n' -}}{%- endfor -%}
    {%- endif -%}
    {{- message.content | trim -}}
  {%- endif -%}
  {{- '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%})jinja";

// Gemma. It has no system role: the text goes in front of the first user turn, as in Google's own template.
constexpr std::string_view kGemma = R"jinja({{- bos_token | default('') -}}
{%- set ns = namespace(prefix='', first=0) -%}
{%- if messages and messages[0].role == 'system' -%}
  {%- set ns.prefix = (messages[0].content | trim) + '\n\n' -%}
  {%- set ns.first = 1 -%}
{%- endif -%}
{%- for message in messages[ns.first:] -%}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
  {%- endif -%}
  {%- set role = 'model' if message.role == 'assistant' else message.role -%}
  {{- '<start_of_turn>' + role + '\n' -}}
  {%- if loop.first -%}{{- ns.prefix -}}{%- endif -%}
  {{- (message.content | trim) + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%})jinja";

// Mistral, tokenizer v3: the system text and the tools go with the last user message.
constexpr std::string_view kMistral = R"jinja({{- bos_token | default('') -}}
{%- set ns = namespace(prefix='', first=0, last_user=-1, turns=0) -%}
{%- if messages and messages[0].role == 'system' -%}
  {%- set ns.prefix = messages[0].content + '\n\n' -%}
  {%- set ns.first = 1 -%}
{%- endif -%}
{%- set turns = messages[ns.first:] -%}
{%- for message in turns -%}
  {%- if message.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
  {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) -%}
    {%- if (message.role == 'user') != (ns.turns % 2 == 0) -%}
      {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') -}}
    {%- endif -%}
    {%- set ns.turns = ns.turns + 1 -%}
  {%- endif -%}
{%- endfor -%}
{%- for message in turns -%}
  {%- if message.role == 'user' -%}
    {%- if tools and loop.index0 == ns.last_user -%}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
    {{- '[INST] ' + (ns.prefix if loop.index0 == ns.last_user else '') + message.content + '[/INST]' -}}
  {%- elif message.role == 'assistant' and message.tool_calls -%}
    {{- '[TOOL_CALLS] [' -}}
    {%- for call in message.tool_calls -%}
      {{- '{"name": ' + (call.function.name | tojson) + ', "arguments": ' + (call.function.arguments | tojson) -}}
      {%- if call.id is defined -%}{{- ', "id": ' + (call.id | tojson) -}}{%- endif -%}
      {{- '}' + ('' if loop.last else ', ') -}}
    {%- endfor -%}
    {{- ']' + (eos_token | default('</s>')) -}}
  {%- elif message.role == 'assistant' -%}
    {{- ' ' + (message.content | trim) + (eos_token | default('</s>')) -}}
  {%- elif message.role == 'tool' -%}
    {{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) -}}
    {%- if message.tool_call_id is defined -%}{{- ', "call_id": ' + (message.tool_call_id | tojson) -}}{%- endif -%}
    {{- '}[/TOOL_RESULTS]' -}}
  {%- else -%}
    {{- raise_exception('Only user, assistant and tool messages may follow the system message, not ' + message.role) -}}
  {%- endif -%}
{%- endfor -%})jinja";

}  // namespace

const BuiltinTemplate kBuiltinTemplates[4] = {
    {"chatml", {"<|im_start|>", "<|im_end|>"}, kChatML},
    {"llama3", {"<|start_header_id|>", "<|eot_id|>"}, kLlama3},
    {"gemma", {"<start_of_turn>", "<end_of_turn>"}, kGemma},
    {"mistral", {"[INST]", "[/INST]"}, kMistral},
};

}  // namespace argent
