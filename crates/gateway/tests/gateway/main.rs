//! The gateway against a provider that speaks the real wires on loopback, errors included.

mod faults;
mod limits;
mod money;
mod provider;
mod translated;
mod world;

use saggar_domain::secret::Slot;
use saggar_gateway::ClientWire;
use serde_json::json;

use provider::{Provider, sse};
use world::{TestWorld, ask, caller, gateway, text};

/// A catalogue with the route `m` to one provider.
fn catalogue(kind: &str, port: u16, more: &str) -> String {
    format!(
        r#"
        [providers.p]
        kind = "{kind}"
        url = "http://127.0.0.1:{port}"
        {more}
        [models.m]
        targets = [{{ provider = "p", model = "real-model", prices = {{ input = "3", output = "15", cached_read = "0.3" }} }}]
        "#
    )
}

fn bound() -> (Slot, &'static str) {
    (Slot::Bearer, "api.example.com")
}

const CHAT: &str = concat!(
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"real-model\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"unknown\":{\"kept\":true}}\n\n",
    ": keep-alive\n\nid: 9\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":1000,\"completion_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":900}}}\n\n",
    "data: [DONE]\n\n",
);

#[tokio::test]
async fn a_client_of_the_providers_own_wire_gets_what_the_provider_sent() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let gateway = gateway(&world, &catalogue("openai", provider.port, "keys = [\"key-one\"]"));
    provider.always(vec![sse(CHAT)]);
    let body =
        json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}], "new_field": {"a": 1}});
    let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    assert!(got.contains(r#""unknown":{"kept":true}"#), "{got}");
    assert!(
        !got.contains("\"usage\"") && !got.contains("id: 9") && !got.contains(": keep"),
        "it was not asked for: {got}"
    );
    assert!(got.ends_with("data: [DONE]\n\n"), "{got}");
    let seen = &provider.requests()[0];
    assert_eq!((&seen.body["new_field"], &seen.body["model"]), (&json!({"a": 1}), &json!("real-model")));
    assert_eq!(seen.body["stream_options"]["include_usage"], true);
    let head = seen.head.to_ascii_lowercase();
    assert!(
        head.starts_with("post /chat/completions ") && head.contains("authorization: bearer canary-key-one"),
        "{head}"
    );
    let mut with_usage = body.clone();
    with_usage["stream_options"] = json!({"include_usage": true});
    let got = text(gateway.answer(caller(), ask(ClientWire::Chat, &with_usage)).await).await.unwrap();
    assert!(got.contains("\"prompt_tokens\":1000"), "{got}");
    // 100 · $3 + 900 · $0.3 + 10 · $15 per million.
    for bill in world.booked(2).await {
        assert_eq!(
            (bill.usage.input, bill.usage.output, bill.usage.cost.0, bill.outcome),
            (1000, 10, 300 + 270 + 150, "ok")
        );
    }
}

#[tokio::test]
async fn the_same_request_is_answered_from_the_cache_of_its_project_alone() {
    let (provider, (slot, host)) = (Provider::start().await, bound());
    let world = TestWorld::new(slot, host);
    let cached =
        catalogue("openai", provider.port, "").replace("[models.m]\n", "[models.m]\n        cache = \"10m\"\n");
    let gateway = gateway(&world, &cached);
    provider.always(vec![sse(CHAT)]);
    let body = json!({"model": "m", "stream": true, "messages": []});
    let first = text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    let again = text(gateway.answer(caller(), ask(ClientWire::Chat, &body)).await).await.unwrap();
    assert_eq!((first, provider.requests().len()), (again, 1));
    let mut other = caller();
    other.project = saggar_domain::ProjectId::parse("prj_aaaaaaaaaaaaaaaaaaaaaaaaac").unwrap();
    text(gateway.answer(other, ask(ClientWire::Chat, &body)).await).await.unwrap();
    assert_eq!(provider.requests().len(), 2, "another project has its own");
}
