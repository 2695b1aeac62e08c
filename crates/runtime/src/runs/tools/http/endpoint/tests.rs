//! Declarations of endpoints, and the requests that their calls become.

use saggar_domain::Schema;
use saggar_engine::RetryPolicy;
use serde_json::json;

use super::*;

fn endpoint(method: &str, url: &str) -> HttpEndpoint {
    let schema = json!({
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "count": {"type": ["integer", "null"]},
            "note": {"type": "string", "maxLength": 20}
        },
        "required": ["id"],
        "additionalProperties": false
    });
    HttpEndpoint {
        description: "Looks things up.".to_owned(),
        url: url.to_owned(),
        method: method.to_owned(),
        schema: Schema::new(schema).unwrap(),
        headers: [("Accept".to_owned(), "application/json".to_owned())].into(),
        idempotency_header: None,
        secret: None,
    }
}

fn tool(class: Class) -> ToolSpec {
    ToolSpec {
        class,
        retry: RetryPolicy::default(),
        timeout_ms: 1000,
        egress: None,
        endpoint: None,
        is_parallel: false,
        uses_sandbox: false,
    }
}

/// The method, the URL and the body of a call.
fn check_call(method: &str, url: &str, arguments: &str, expected: Result<(&str, &str), &str>) {
    let called = call("lookup", &endpoint(method, url), arguments);
    match (called, expected) {
        (Ok(call), Ok((url, body))) => {
            let sent = match &call.payload {
                Payload::None => String::new(),
                Payload::Json(body) | Payload::Text(body) => String::from_utf8_lossy(body).into_owned(),
            };
            assert_eq!((call.method.as_str(), call.address.to_string().as_str(), sent.as_str()), (method, url, body));
            assert_eq!(call.headers["accept"], "application/json");
        }
        (Err(complaint), Err(why)) => {
            assert!(
                complaint.starts_with("the arguments of lookup are invalid") && complaint.contains(why),
                "{complaint}"
            );
        }
        (called, expected) => panic!("{arguments}: {called:?} instead of {expected:?}"),
    }
}

#[test]
fn arguments_become_a_path_a_query_or_a_body() {
    let item = "https://api.example.com/v1/items/{id}?v=2";
    check_call("GET", item, r#"{"id":"7"}"#, Ok(("https://api.example.com/v1/items/7?v=2", "")));
    check_call(
        "GET",
        item,
        r#"{"id":"ä b","count":3,"note":"a&b=c"}"#,
        Ok(("https://api.example.com/v1/items/%C3%A4%20b?v=2&count=3&note=a%26b%3Dc", "")),
    );
    check_call("GET", item, r#"{"id":"7","count":null}"#, Ok(("https://api.example.com/v1/items/7?v=2", "")));
    check_call(
        "POST",
        item,
        r#"{"id":"7","count":3}"#,
        Ok(("https://api.example.com/v1/items/7?v=2", r#"{"count":3}"#)),
    );
    let all = "https://api.example.com/v1/items";
    check_call("POST", all, r#"{"id":"7"}"#, Ok((all, r#"{"id":"7"}"#)));
    check_call("DELETE", all, r#"{"id":"7"}"#, Ok(("https://api.example.com/v1/items?id=7", "")));
}

#[test]
fn arguments_lead_nowhere_else_and_are_checked_before() {
    let item = "https://api.example.com/v1/items/{id}";
    for id in ["..", ".", "../../admin", "a/b", "a\\b", "%2e%2e", "..;", "\u{0}", "a\r\nHost: evil"] {
        let arguments = json!({ "id": id }).to_string();
        check_call("GET", item, &arguments, Err("the URL that they lead to is not allowed"));
    }
    // These stay one segment of the path.
    for (id, sent) in [("?x=1", "%3Fx%3D1"), ("#a", "%23a"), ("@evil.example", "%40evil.example")] {
        let arguments = json!({ "id": id }).to_string();
        check_call("GET", item, &arguments, Ok((&format!("https://api.example.com/v1/items/{sent}"), "")));
    }
    for (arguments, why) in [
        ("{}", "id"),
        (r#"{"id":7}"#, "/id"),
        (r#"{"id":""}"#, "not empty"),
        (r#"{"id":"7","more":1}"#, "more"),
        (r#"{"id":"7","note":"far too long for what is allowed"}"#, "/note"),
        ("[]", "object"),
        ("{", "not JSON"),
    ] {
        check_call("GET", item, arguments, Err(why));
    }
}

fn check_refused(change: impl FnOnce(&mut HttpEndpoint), class: Class, at: &str, why: &str) {
    let mut declared = endpoint("POST", "https://api.example.com/v1/items/{id}");
    change(&mut declared);
    let problem = check("lookup", &tool(class), &declared).expect_err(why);
    assert!(problem.message.starts_with(&format!("tools.lookup{at}: ")), "{problem:?}");
    assert!(problem.message.contains(why) && !problem.help.is_empty(), "{problem:?}");
}

#[test]
fn a_declaration_that_is_unsafe_or_contradicts_itself_is_refused_with_its_field() {
    let url = |url: &str| {
        let url = url.to_owned();
        move |endpoint: &mut HttpEndpoint| endpoint.url = url
    };
    for class in [Class::Pure, Class::Once] {
        assert_eq!(check("lookup", &tool(class), &endpoint("POST", "https://api.example.com/{id}")), Ok(()));
    }
    check_refused(url("https://{id}.example.com/"), Class::Once, ".url", "only its path");
    check_refused(url("https://api.example.com/?q={id}"), Class::Once, ".url", "only its path");
    check_refused(url("https://api.example.com/{other}"), Class::Once, ".url", "{other} is not a required argument");
    check_refused(url("https://api.example.com/{count}"), Class::Once, ".url", "{count} is not a required argument");
    check_refused(url("https://user:pw@api.example.com/"), Class::Once, ".url", "");
    check_refused(url("file:///etc/passwd"), Class::Once, ".url", "");
    check_refused(url("https://api.example.com/../x"), Class::Once, ".url", "");
    let secret = |endpoint: &mut HttpEndpoint| {
        endpoint.url = "http://api.example.com/".to_owned();
        endpoint.secret = Some("orders".parse().unwrap());
    };
    check_refused(secret, Class::Once, ".url", "unencrypted");
    for header in ["Authorization", "cookie", "X-Api-Key"] {
        let with = |endpoint: &mut HttpEndpoint| drop(endpoint.headers.insert(header.to_owned(), "x".to_owned()));
        check_refused(with, Class::Once, ".headers", "a credential in the open");
    }
    let host = |endpoint: &mut HttpEndpoint| drop(endpoint.headers.insert("Host".to_owned(), "x".to_owned()));
    check_refused(host, Class::Once, ".headers", "set by the tool");
    check_refused(|endpoint| endpoint.method = "CONNECT".to_owned(), Class::Once, ".method", "can't be called");
    check_refused(|endpoint| endpoint.method = "get".to_owned(), Class::Once, ".method", "can't be called");
    check_refused(|endpoint| endpoint.description.clear(), Class::Once, ".description", "no text");
    let list = |endpoint: &mut HttpEndpoint| endpoint.schema = Schema::new(json!({"type": "array"})).unwrap();
    check_refused(list, Class::Once, ".schema", "an object");
    let key = |endpoint: &mut HttpEndpoint| endpoint.idempotency_header = Some("Authorization".to_owned());
    check_refused(key, Class::Keyed, ".idempotency_header", "can't go there");
    check_refused(|_| (), Class::Keyed, ".class", "no header for the key");
    check_refused(|_| (), Class::Probeable, ".class", "can't be asked");
    let deep = |endpoint: &mut HttpEndpoint| {
        endpoint.method = "GET".to_owned();
        let properties = json!({"id": {"type": "string"}, "filter": {"type": "object"}});
        endpoint.schema = Schema::new(json!({"type": "object", "properties": properties, "required": ["id"]})).unwrap();
    };
    check_refused(deep, Class::Pure, ".url", "no place for the argument \"filter\"");
    let declared = endpoint("POST", "https://api.example.com/{id}");
    for name in ["shell", "http", "finish", "", "with space", "a.b"] {
        assert!(check(name, &tool(Class::Once), &declared).is_err(), "{name:?}");
    }
}

#[test]
fn the_class_follows_from_what_may_be_repeated() {
    let keyed = HttpEndpoint { idempotency_header: Some("Key".to_owned()), ..endpoint("POST", "") };
    let classes = [endpoint("GET", ""), endpoint("POST", ""), endpoint("DELETE", ""), keyed].map(|e| default_class(&e));
    assert_eq!(classes, [Class::Pure, Class::Once, Class::Once, Class::Keyed]);
}
