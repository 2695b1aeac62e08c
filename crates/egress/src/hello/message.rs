//! The body of a ClientHello (RFC 8446, 4.1.2; RFC 6066, 3). Strict: every length must be used up exactly.

use saggar_domain::net::Host;

use super::{ClientHello, HelloError, ServerName};
use crate::bytes::Cursor;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
/// Encrypted ClientHello, its drafts that clients shipped, and its predecessor ESNI.
const ECH: [u16; 5] = [0xfe0d, 0xfe0a, 0xfe09, 0xfe08, 0xffce];
const HOST_NAME: u8 = 0;
const SESSION_ID_MAX: usize = 32;

/// Parses what follows the header of the handshake message.
pub(super) fn parse(body: &[u8]) -> Result<ClientHello, HelloError> {
    let mut cursor = Cursor::new(body);
    let extensions = extensions(&mut cursor).ok_or(HelloError::Length)?;
    if !cursor.is_empty() {
        return Err(HelloError::Trailing);
    }

    let mut hello = ClientHello { name: ServerName::Absent, alpn: Vec::new(), ech: false };
    let mut seen = Vec::new();
    let mut cursor = Cursor::new(extensions);
    while !cursor.is_empty() {
        let kind = cursor.u16().ok_or(HelloError::Length)?;
        let data = cursor.vector16().ok_or(HelloError::Length)?;
        seen.push(kind);
        match kind {
            SERVER_NAME => hello.name = server_name(data)?,
            ALPN => hello.alpn = alpn(data).ok_or(HelloError::Alpn)?,
            kind if ECH.contains(&kind) => hello.ech = true,
            _ => {}
        }
    }
    seen.sort_unstable();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(HelloError::DuplicateExtension);
    }
    Ok(hello)
}

/// Skips to the extensions. A hello without any is allowed: old clients send none.
fn extensions<'a>(cursor: &mut Cursor<'a>) -> Option<&'a [u8]> {
    let _legacy_version = cursor.u16()?;
    let _random = cursor.take(32)?;
    let session_id = cursor.vector8()?;
    let cipher_suites = cursor.vector16()?;
    let compressions = cursor.vector8()?;
    let well_formed = session_id.len() <= SESSION_ID_MAX
        && !cipher_suites.is_empty()
        && cipher_suites.len().is_multiple_of(2)
        && !compressions.is_empty();
    match well_formed {
        false => None,
        true if cursor.is_empty() => Some(&[]),
        true => cursor.vector16(),
    }
}

fn server_name(data: &[u8]) -> Result<ServerName, HelloError> {
    let mut outer = Cursor::new(data);
    let list = outer.vector16().filter(|_| outer.is_empty()).ok_or(HelloError::ServerNameList)?;
    let mut list = Cursor::new(list);
    let (Some(HOST_NAME), Some(name), true) = (list.u8(), list.vector16(), list.is_empty()) else {
        return Err(HelloError::ServerNameList);
    };
    let host = Host::parse(name).map_err(|_| HelloError::ServerName)?;
    // The bytes go on as they are where TLS isn't terminated, so the server must read the same name as we do.
    if !host.to_string().as_bytes().eq_ignore_ascii_case(name) {
        return Err(HelloError::ServerName);
    }
    Ok(match host {
        Host::Name(name) => ServerName::Name(name),
        Host::V4(address) => ServerName::Address(address.into()),
        Host::V6(address) => ServerName::Address(address.into()),
    })
}

fn alpn(data: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut outer = Cursor::new(data);
    let list = outer.vector16().filter(|list| outer.is_empty() && !list.is_empty())?;
    let mut list = Cursor::new(list);
    let mut protocols = Vec::new();
    while !list.is_empty() {
        protocols.push(list.vector8().filter(|protocol| !protocol.is_empty())?.to_vec());
    }
    Some(protocols)
}
