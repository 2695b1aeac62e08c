//! A provider of models that answers at once, or as fast as it is told: OpenAI's chat completions, as far as measuring needs.
//!
//! A process of its own, so that it costs every contender the same. It looks at three things of a request: `"stream":true`, and in the
//! model's name how many tokens it writes and how many of them a second: `tokens-300-at-100`.

use std::io::{self, BufRead as _, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::http::Request;
use crate::patience::pause;

/// The subcommand that runs it as a process.
pub const CHORE: &str = "__provider";
/// A model that answers at once with a few tokens.
pub const QUICK: &str = "quick";
/// Tokens of a reply whose model's name says nothing else.
const TOKENS: u64 = 4;
const WHOLE: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"quick","choices":[{"index":0,"message":{"role":"assistant","content":"one two three four"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":4,"total_tokens":24}}"#;

/// The provider as a separate process, which ends with its parent.
#[derive(Debug)]
pub struct Provider {
    child: Child,
    address: SocketAddr,
}

impl Provider {
    pub fn start() -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program).arg(CHORE).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("the provider has no output")?;
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address).context("reading the provider's address")?;
        let address = address.trim().parse().context("the provider did not start")?;
        Ok(Self { child, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // It holds no state, and may have ended.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// The name of a model that writes so many tokens at so many a second.
pub fn paced(tokens: u64, per_second: u64) -> String {
    format!("tokens-{tokens}-at-{per_second}")
}

/// Prints its address, and serves until stdin is closed.
pub fn serve_alone() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening for the provider")?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            let answering = std::thread::Builder::new().name("provider".into()).spawn(move || drop(answer_all(stream)));
            if let Err(error) = answering {
                eprintln!("measure: the provider can't answer: {error}");
            }
        }
    };
    std::thread::Builder::new().name("provider".into()).spawn(accept).context("starting a thread")?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn answer_all(stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        let body = String::from_utf8_lossy(&request.body);
        let compact: String = body.chars().filter(|c| !c.is_whitespace()).take(64 * 1024).collect();
        if compact.contains(r#""stream":true"#) {
            let (tokens, pace) = pace(&compact);
            write_stream(&mut writer, tokens, pace)?;
        } else {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{WHOLE}",
                WHOLE.len()
            );
            writer.write_all(head.as_bytes())?;
        }
    }
    Ok(())
}

/// How many tokens, and the time of each.
fn pace(body: &str) -> (u64, Duration) {
    let named = || {
        let (_, rest) = body.split_once("tokens-")?;
        let (tokens, rest) = rest.split_once("-at-")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some((tokens.parse().ok()?, Duration::from_secs(1) / digits.parse().ok()?))
    };
    named().unwrap_or((TOKENS, Duration::ZERO))
}

fn write_stream(writer: &mut TcpStream, tokens: u64, pace: Duration) -> io::Result<()> {
    let chunk = |delta: &str, finish: &str| {
        format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"quick\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let send = |writer: &mut TcpStream, events: &str| {
        writer.write_all(format!("{:x}\r\n{events}\r\n", events.len()).as_bytes())
    };
    writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
    let begun = Instant::now();
    send(writer, &chunk(r#"{"role":"assistant","content":""}"#, "null"))?;
    for token in 1..=tokens {
        // By the clock, so that a late token doesn't delay those after it.
        let due = pace.saturating_mul(u32::try_from(token).unwrap_or(u32::MAX));
        let left = due.saturating_sub(begun.elapsed());
        if !left.is_zero() {
            pause(left);
        }
        send(writer, &chunk(r#"{"content":" word"}"#, "null"))?;
    }
    let usage = format!(
        "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"quick\",\"choices\":[],\"usage\":{{\"prompt_tokens\":20,\"completion_tokens\":{tokens},\"total_tokens\":{}}}}}\n\n",
        tokens + 20
    );
    send(writer, &format!("{}{usage}data: [DONE]\n\n", chunk("{}", r#""stop""#)))?;
    writer.write_all(b"0\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_says_how_much_and_how_fast_it_writes() {
        let body = |model: &str| format!(r#"{{"model":"{model}","stream":true}}"#);
        assert_eq!(pace(&body(&paced(300, 100))), (300, Duration::from_millis(10)));
        assert_eq!(pace(&body(QUICK)), (TOKENS, Duration::ZERO));
    }
}
