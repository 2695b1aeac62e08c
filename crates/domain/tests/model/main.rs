//! The vocabulary of conversations with models: what is stored reads back, and what is used has one price.

use saggar_domain::model::{
    Image, ImageSource, JsonSchema, LongPrompt, Message, Micros, Millionths, ModelReply, ModelRequest, Origin,
    OutputFormat, Part, Price, Prices, ReasoningEffort, ResultPart, Role, RouteName, Sampling, Stop, TokenUsage,
    ToolCall, ToolChoice, ToolDefinition, ToolResult, UsageSource, Verbatim, Wire,
};
use serde_json::json;

fn origin() -> Origin {
    Origin { provider: "anthropic".to_owned(), model: "claude-sonnet-5".to_owned() }
}

fn verbatim(data: &str) -> Verbatim {
    Verbatim { wire: Wire::Anthropic, origin: origin(), data: data.to_owned() }
}

fn everything() -> ModelRequest {
    let image = || Image {
        source: ImageSource::Data { media_type: "image/png".to_owned(), data: "aGk=".to_owned() },
        detail: None,
    };
    let call = ToolCall {
        id: "call_1".to_owned(),
        name: "shell".to_owned(),
        arguments: r#"{"command":"ls"}"#.to_owned(),
        verbatim: Some(verbatim(r#"{"thoughtSignature":"x"}"#)),
    };
    let result = ToolResult {
        call: "call_1".to_owned(),
        content: vec![ResultPart::Text { text: "a".to_owned() }, ResultPart::Image(image())],
        is_error: true,
    };
    let messages = vec![
        Message::new(Role::System, vec![Part::text("be brief")]),
        Message::new(Role::User, vec![Part::text("look"), Part::Image(image())]),
        Message::new(
            Role::Assistant,
            vec![
                Part::Reasoning { text: "hm".to_owned(), verbatim: Some(verbatim("{}")) },
                Part::Provider { verbatim: verbatim(r#"{"type":"server_tool_use"}"#) },
                Part::ToolCall(call),
            ],
        ),
        Message::new(Role::User, vec![Part::ToolResult(result)]),
        Message::new(Role::Assistant, vec![Part::Refusal { text: "no".to_owned() }]),
    ];
    ModelRequest {
        tools: vec![ToolDefinition {
            name: "shell".to_owned(),
            description: "Runs a command.".to_owned(),
            parameters: JsonSchema(json!({"type": "object"})),
            strict: Some(true),
        }],
        tool_choice: ToolChoice::Named("shell".to_owned()),
        parallel_calls: Some(false),
        sampling: Sampling {
            max_tokens: Some(100),
            temperature: Millionths::from_f64(0.7),
            stop: vec!["END".to_owned()],
            reasoning: Some(ReasoningEffort::High),
            ..Sampling::default()
        },
        output: OutputFormat::Schema { name: "answer".to_owned(), schema: JsonSchema(json!({})), strict: None },
        ..ModelRequest::new(RouteName::parse("claude").expect("it is a name"), messages)
    }
}

#[test]
fn a_request_is_stored_and_read_the_same() {
    let request = everything();
    let text = serde_json::to_string(&request).unwrap();
    assert_eq!(serde_json::from_str::<ModelRequest>(&text).unwrap(), request, "{text}");
    let least = r#"{"route":"a","messages":[{"role":"user","parts":[{"type":"text","text":"hi"}]}]}"#;
    let read: ModelRequest = serde_json::from_str(least).unwrap();
    assert_eq!(
        read,
        ModelRequest::new(RouteName::parse("a").unwrap(), vec![Message::new(Role::User, vec![Part::text("hi")])])
    );
}

#[test]
fn what_is_stored_today_is_read_for_ever() {
    let stored = r#"{"parts":[{"type":"reasoning","text":"hm","verbatim":{"wire":"anthropic","origin":{"provider":"p","model":"m"},"data":"{}"}},{"type":"tool_call","id":"a","name":"b","arguments":"{}"}],"stop":"tool_calls","usage":{"input":5,"output":7,"cost":12,"source":"estimated"},"origin":{"provider":"p","model":"m"}}"#;
    let reply: ModelReply = serde_json::from_str(stored).unwrap();
    assert_eq!(
        (reply.stop, reply.usage.cost, reply.usage.source),
        (Stop::ToolCalls, Micros(12), UsageSource::Estimated)
    );
    assert_eq!(reply.calls().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn every_long_text_is_mapped_once_and_the_rest_stays() {
    let mut seen = Vec::new();
    let numbered: ModelRequest<usize> = everything()
        .try_map(&mut |text: String| {
            seen.push(text);
            Ok::<_, std::convert::Infallible>(seen.len() - 1)
        })
        .unwrap();
    let stored = serde_json::to_string(&numbered).unwrap();
    assert_eq!(serde_json::from_str::<ModelRequest<usize>>(&stored).unwrap(), numbered);
    let back = numbered.try_map(&mut |number| seen.get(number).cloned().ok_or(())).unwrap();
    assert_eq!(back, everything());
    assert_eq!(seen.len(), 11);
}

#[test]
fn verbatim_data_goes_back_only_where_it_came_from() {
    let data = verbatim("{}");
    assert!(data.is_for(Wire::Anthropic, &origin()));
    assert!(!data.is_for(Wire::Chat, &origin()));
    assert!(!data.is_for(Wire::Anthropic, &Origin { model: "claude-opus-5".to_owned(), ..origin() }));
    assert!(!data.is_for(Wire::Anthropic, &Origin { provider: "bedrock".to_owned(), ..origin() }));
}

#[test]
fn a_cost_is_what_the_parts_cost_rounded_up_once() {
    let prices = Prices {
        input: Price(3_000_000),
        output: Price(15_000_000),
        cached_read: Some(Price(300_000)),
        cache_write: Some(Price(3_750_000)),
        cache_write_long: Some(Price(6_000_000)),
        ..Prices::default()
    };
    let cost = |usage: TokenUsage| prices.cost(&usage).0;
    let usage = TokenUsage { input: 1_000, output: 100, ..TokenUsage::default() };
    assert_eq!(cost(usage), 3_000 + 1_500);
    assert_eq!(cost(TokenUsage { cached_read: 900, ..usage }), 300 + 270 + 1_500);
    assert_eq!(
        cost(TokenUsage { cached_read: 500, cache_write: 400, cache_write_long: 100, ..usage }),
        300 + 150 + 1_125 + 600 + 1_500
    );
    assert_eq!(cost(TokenUsage { reasoning: 80, ..usage }), 4_500, "reasoning is in the output already");
    assert_eq!(cost(TokenUsage { cached_read: 1, input: 1, output: 0, ..usage }), 1, "0.3 is rounded up");
    assert_eq!(cost(TokenUsage { cached_read: 9_999, ..usage }), 300 + 1_500, "more cached than there was");
    assert_eq!(cost(TokenUsage { input: u64::MAX, ..usage }), u64::MAX, "it saturates");
    let long = Prices {
        long_prompt: Some(LongPrompt { above: 999, input: Price(6_000_000), output: Price(0), cached_read: None }),
        request: Micros(7),
        ..prices
    };
    assert_eq!(long.cost(&usage), Micros(6_007));
    assert_eq!(long.cost(&TokenUsage { input: 999, ..usage }), Micros(2_997 + 1_500 + 7));
}

#[test]
fn no_usage_within_a_reservation_costs_more_than_it() {
    let prices = Prices {
        input: Price(1_000_000),
        output: Price(2_000_000),
        cache_write_long: Some(Price(2_000_001)),
        reasoning: Some(Price(5_000_000)),
        ..Prices::default()
    };
    let most = prices.cost_at_most(1_000, 100);
    for cached_read in [0, 10, 1_000] {
        for cache_write in [0, 500, 1_000] {
            for cache_write_long in [0, 500, 1_000] {
                for reasoning in [0, 50, 100] {
                    let usage = TokenUsage {
                        input: 1_000,
                        output: 100,
                        cached_read,
                        cache_write,
                        cache_write_long,
                        reasoning,
                        ..TokenUsage::default()
                    };
                    assert!(prices.cost(&usage) <= most, "{usage:?}");
                }
            }
        }
    }
}
