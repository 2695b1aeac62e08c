//! Destinations of E2B's clients as network rules.
//!
//! E2B allows what isn't denied, and an allowed destination wins over a denied one. Here nothing is allowed without a rule, and a denied
//! destination wins. So that its clients get what they mean: without a denial of everything, every public destination is allowed; and
//! what they allow is cut out of what they deny.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use saggar_api::Code;
use saggar_domain::net::{EgressDraft, Rule};
use saggar_http::Refusal;

/// Destinations of one sandbox. As many rules as a sandbox can have.
const PLACES_MAX: usize = 512;
/// Everything that is public, on every port.
pub(super) const EVERYTHING: &str = "*:*";

/// What a client asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Destinations<'a> {
    pub(super) allow: &'a [String],
    pub(super) deny: &'a [String],
    /// Name servers that can be reached if a name is allowed.
    pub(super) name_servers: &'a [String],
    /// Whether everything is denied apart from what `allow` says.
    pub(super) denies_everything: bool,
}

/// One destination.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Everything,
    Range(Range),
    /// A name, or `*.` and a name.
    Name(String),
}

/// A range of addresses: the first `len` bits are those of `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: IpAddr,
    len: u8,
}

pub(super) fn rules(asked: Destinations<'_>) -> Result<EgressDraft, Refusal> {
    let count = asked.allow.len() + asked.deny.len();
    if count > PLACES_MAX {
        return Err(wrong(
            format!("allow_out and deny_out have {count} destinations, more than {PLACES_MAX}"),
            "use wider ranges, or names such as *.example.com",
        ));
    }
    let allow = places(asked.allow)?;
    let deny = places(asked.deny)?;
    if let Some(Place::Name(name)) = deny.iter().find(|place| matches!(place, Place::Name(_))) {
        return Err(wrong(
            format!("deny_out has the name {name:?}, and only addresses can be denied"),
            "deny everything (0.0.0.0/0), and name in allow_out what may be reached",
        ));
    }
    let has_name = allow.iter().any(|place| matches!(place, Place::Name(_)));
    // A denial of all of IPv6 stands for all traffic: what is denied is never less than what was asked for.
    let denies_everything = asked.denies_everything || deny.iter().any(Place::is_all_of_a_family);
    if has_name && !denies_everything {
        return Err(wrong(
            "allow_out has a domain, and deny_out doesn't deny all other traffic".to_owned(),
            "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic.",
        ));
    }
    let mut texts: Vec<String> = Vec::new();
    if !denies_everything || allow.contains(&Place::Everything) {
        texts.push(EVERYTHING.to_owned());
    }
    texts.extend(allow.iter().filter_map(Place::text));
    if has_name {
        texts.extend(places(asked.name_servers)?.iter().filter_map(Place::text));
    }
    let opened: Vec<Range> = allow.iter().filter_map(Place::range).collect();
    let denied = match denies_everything || allow.contains(&Place::Everything) {
        // Nothing is left to deny, or nothing is denied.
        true => Vec::new(),
        false => deny.iter().filter_map(Place::range).flat_map(|range| range.without(&opened)).collect(),
    };
    let denied: Vec<String> = denied.into_iter().map(Range::text).collect();
    Ok(EgressDraft::of(parsed(&texts)?, parsed(&denied)?))
}

/// The destinations of rules as E2B's clients wrote them: allowed and denied ones.
pub(super) fn shown(allow: &[String], deny: &[String]) -> (Vec<String>, Vec<String>) {
    let plain = |rule: &String| rule.strip_suffix(":*").unwrap_or(rule).replace(['[', ']'], "");
    let named = allow.iter().filter(|rule| *rule != EVERYTHING).map(plain).collect();
    match allows_everything(allow) {
        true => (named, deny.iter().map(plain).collect()),
        false => (named, vec!["0.0.0.0/0".to_owned()]),
    }
}

/// The rule for the host of a header rule: a name, or `*.` and a name.
pub(super) fn name_rule(text: &str) -> Result<Rule, Refusal> {
    match Place::parse(text)? {
        Place::Name(name) => name.parse().map_err(|error| wrong(format!("{name:?}: {error}"), PLACE_HELP)),
        Place::Everything | Place::Range(_) => {
            Err(wrong(format!("header rules are for hosts by name, and {text:?} is none"), "name the host"))
        }
    }
}

/// Whether rules allow what E2B calls internet access.
pub(super) fn allows_everything(allow: &[String]) -> bool {
    allow.iter().any(|rule| rule == EVERYTHING)
}

fn places(texts: &[String]) -> Result<Vec<Place>, Refusal> {
    texts.iter().map(|text| Place::parse(text)).collect()
}

fn parsed(texts: &[String]) -> Result<Vec<Rule>, Refusal> {
    let mut rules: Vec<Rule> = Vec::new();
    for text in texts {
        let rule: Rule = text.parse().map_err(|error| wrong(format!("{text:?}: {error}"), PLACE_HELP))?;
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    Ok(rules)
}

const PLACE_HELP: &str = "write an address, a range of addresses such as 8.8.8.0/24, or a name such as *.example.com";

fn wrong(what: String, help: &str) -> Refusal {
    Refusal::new(Code::InvalidValue, what, help)
}

impl Place {
    fn parse(text: &str) -> Result<Self, Refusal> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        if let Ok(address) = address.parse::<IpAddr>() {
            let bits = Range::bits(address);
            let len = len.map_or(Ok(bits), |len| len.parse::<u8>());
            return match len {
                // E2B's word for all traffic. Its IPv6 counterpart is a range like any other.
                Ok(0) if address.is_ipv4() => Ok(Self::Everything),
                Ok(len) if len <= bits => Ok(Self::Range(Range::new(address, len))),
                _ => Err(wrong(format!("{text:?} is not a range of addresses"), PLACE_HELP)),
            };
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
        if text == "*" {
            return Ok(Self::Everything);
        }
        // Rules have more forms than these clients.
        if text.is_empty() || !text.bytes().all(is_plain) {
            let shown: String = text.chars().take(64).collect();
            return Err(wrong(format!("{shown:?} is not a destination"), PLACE_HELP));
        }
        Ok(Self::Name(text.to_owned()))
    }

    /// The rule for it. E2B recognises names on ports 80 and 443 only, as rules without a port do, and addresses on every port.
    fn text(&self) -> Option<String> {
        match self {
            Self::Everything => None,
            Self::Range(range) => Some(range.text()),
            Self::Name(name) => Some(name.clone()),
        }
    }

    fn is_all_of_a_family(&self) -> bool {
        matches!(self, Self::Everything | Self::Range(Range { len: 0, .. }))
    }

    fn range(&self) -> Option<Range> {
        match self {
            Self::Range(range) => Some(*range),
            Self::Everything | Self::Name(_) => None,
        }
    }
}

impl Range {
    fn bits(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// Bits after the first `len` are cleared, as E2B does.
    fn new(address: IpAddr, len: u8) -> Self {
        let bits = Self::bits(address);
        let kept = match len {
            0 => 0,
            len => u128::MAX << (bits - len),
        };
        Self { first: Self::address(bits, Self::number(address) & kept), len }
    }

    fn number(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        }
    }

    fn address(bits: u8, number: u128) -> IpAddr {
        match bits {
            32 => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number & u128::from(u32::MAX)).unwrap_or(u32::MAX))),
            _ => IpAddr::V6(Ipv6Addr::from_bits(number)),
        }
    }

    fn contains(self, other: Self) -> bool {
        self.first.is_ipv4() == other.first.is_ipv4()
            && self.len <= other.len
            && Self::new(other.first, self.len).first == self.first
    }

    /// What is left of it without these: as few ranges as possible.
    fn without(self, holes: &[Self]) -> Vec<Self> {
        if holes.iter().any(|hole| hole.contains(self)) {
            return Vec::new();
        }
        let inside: Vec<Self> = holes.iter().copied().filter(|hole| self.contains(*hole)).collect();
        if inside.is_empty() {
            return vec![self];
        }
        // A hole is inside, so it is not a single address.
        let bits = Self::bits(self.first);
        let upper = Self::number(self.first) | 1 << (bits - self.len - 1);
        let halves =
            [Self { len: self.len + 1, ..self }, Self { first: Self::address(bits, upper), len: self.len + 1 }];
        halves.into_iter().flat_map(|half| half.without(&inside)).collect()
    }

    fn text(self) -> String {
        let address = match self.first {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        match self.len == Self::bits(self.first) {
            true => format!("{address}:*"),
            false => format!("{address}/{}:*", self.len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allow: &[&str], deny: &[&str], expected: Result<(&[&str], &[&str]), ()>) {
        let owned = |list: &[&str]| -> Vec<String> { list.iter().map(|text| (*text).to_owned()).collect() };
        let (allow, deny) = (owned(allow), owned(deny));
        let asked = Destinations { allow: &allow, deny: &deny, ..Destinations::default() };
        let texts = |rules: Vec<Rule>| -> Vec<String> { rules.iter().map(ToString::to_string).collect() };
        let made = rules(asked).map(|draft| (texts(draft.allow), texts(draft.deny))).map_err(drop);
        assert_eq!(made, expected.map(|(allow, deny)| (owned(allow), owned(deny))), "{allow:?} {deny:?}");
    }

    #[test]
    fn what_is_not_denied_is_allowed_and_what_is_allowed_wins() {
        check(&[], &[], Ok((&["*:*"], &[])));
        check(&[], &["0.0.0.0/0"], Ok((&[], &[])));
        check(&[], &["::/0"], Ok((&[], &[])));
        check(&["8.8.8.8"], &["0.0.0.0/0"], Ok((&["8.8.8.8:*"], &[])));
        check(&["*.example.com", "example.com"], &["0.0.0.0/0"], Ok((&["*.example.com", "example.com"], &[])));
        check(&["0.0.0.0/0"], &["0.0.0.0/0"], Ok((&["*:*"], &[])));
        check(&["::/0"], &["0.0.0.0/0"], Ok((&["[::]/0:*"], &[])));
        check(&["0.0.0.0/0"], &["8.8.8.8"], Ok((&["*:*"], &[])));
        check(&[], &["8.8.8.8", "2001:db8::/32"], Ok((&["*:*"], &["8.8.8.8:*", "[2001:db8::]/32:*"])));
        check(&["8.8.8.8"], &["8.8.8.8"], Ok((&["*:*", "8.8.8.8:*"], &[])));
        check(&["8.8.8.0/24"], &["8.8.8.8"], Ok((&["*:*", "8.8.8.0/24:*"], &[])));
        check(&["8.8.8.129"], &["8.8.8.128/30"], Ok((&["*:*", "8.8.8.129:*"], &["8.8.8.128:*", "8.8.8.130/31:*"])));
        // As Go does it.
        check(&[], &["8.8.8.8/24"], Ok((&["*:*"], &["8.8.8.0/24:*"])));
        check(&["1.1.1.1"], &["8.8.8.0/24"], Ok((&["*:*", "1.1.1.1:*"], &["8.8.8.0/24:*"])));
    }

    #[test]
    fn lists_are_bounded_and_cut_quickly() {
        let many = |count: u32| -> Vec<String> {
            (0..count).map(|n| Ipv6Addr::from(u128::from(n) << 64).to_string()).collect()
        };
        let (allow, deny) = (many(PLACES_MAX as u32), vec!["::/1".to_owned()]);
        assert!(rules(Destinations { allow: &allow, deny: &deny, ..Destinations::default() }).is_err());
        let allow = many(PLACES_MAX as u32 - 1);
        assert!(rules(Destinations { allow: &allow, deny: &deny, ..Destinations::default() }).is_ok());
    }

    #[test]
    fn what_can_not_be_meant_is_refused() {
        check(&["example.com"], &[], Err(()));
        check(&["example.com"], &["8.8.8.8"], Err(()));
        check(&[], &["example.com"], Err(()));
        for text in
            ["", "8.8.8.8/33", "8.8.8.8/x", "example.com:22", "GET example.com", "@pypi", "http://a", "a/b", "127.1"]
        {
            check(&[text], &["0.0.0.0/0"], Err(()));
        }
    }

    #[test]
    fn rules_are_shown_as_they_were_asked_for() {
        for (allow, deny) in [
            (&[][..], &[][..]),
            (&["8.8.8.8", "example.com"], &["0.0.0.0/0"]),
            (&[], &["0.0.0.0/0"]),
            (&["8.8.4.4"], &["8.8.8.8", "2001:db8::/32"]),
        ] {
            let owned = |list: &[&str]| -> Vec<String> { list.iter().map(|text| (*text).to_owned()).collect() };
            let (allow, deny) = (owned(allow), owned(deny));
            let made = rules(Destinations { allow: &allow, deny: &deny, ..Destinations::default() }).unwrap();
            let texts = |rules: Vec<Rule>| -> Vec<String> { rules.iter().map(ToString::to_string).collect() };
            assert_eq!(shown(&texts(made.allow), &texts(made.deny)), (allow, deny));
        }
    }
}
