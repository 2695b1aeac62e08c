//! A real client. Where there is none, the test says so.

use std::process::Stdio;

use tokio::process::Command;

use crate::sandbox::Sandbox;
use crate::world::World;

async fn curl(sandbox: &Sandbox, arguments: &[&str]) -> Option<String> {
    let ca = std::env::temp_dir().join(format!("saggar-egress-{}-{}.pem", std::process::id(), sandbox.proxy.port()));
    std::fs::write(&ca, &sandbox.ca_pem).unwrap();
    let output = Command::new("curl")
        .env_clear()
        .args(["--silent", "--show-error", "--max-time", "20", "--write-out", " %{http_code}", "--cacert"])
        .arg(&ca)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await;
    std::fs::remove_file(&ca).unwrap();
    match output {
        Ok(output) => {
            Some(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
        }
        Err(error) => {
            eprintln!("this test can't run here: no curl ({error})");
            None
        }
    }
}

#[tokio::test]
async fn curl_works_through_the_proxy_and_shows_refusals() {
    let world = World::new();
    world.https("good.test").await;
    world.http("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test/hello", "good.test/echo"]).await;
    let http = format!("http://{}", sandbox.proxy);
    let socks = format!("socks5h://{}", sandbox.proxy);
    for proxy in [&http, &socks] {
        for (url, more, expected) in [
            ("https://good.test/hello", &[][..], "hello 200"),
            ("https://good.test/hello", &["--http1.1"], "hello 200"),
            ("https://good.test/echo", &["--data", "ping"], "ping 200"),
            ("http://good.test/hello", &[], "hello 200"),
            ("https://good.test/other", &[], " 403"),
            ("https://denied.test/", &[], " 403"),
            ("https://denied.test/", &["--data", "ping"], " 403"),
            ("http://denied.test/", &[], " 403"),
            ("https://good.test/hello", &["--header", "Host: other.test"], " 421"),
        ] {
            let mut arguments = vec!["--proxy", proxy.as_str(), url];
            arguments.extend(more);
            let Some(shown) = curl(&sandbox, &arguments).await else { return };
            assert!(shown.ends_with(expected), "{proxy} {url} {more:?}: {shown}");
            assert_eq!(shown.contains("help: "), !expected.ends_with("200"), "{shown}");
        }
    }
    assert_eq!(sandbox.rest().await.len(), 18);
}
