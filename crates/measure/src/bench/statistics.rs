//! Order statistics: unlike a mean, robust against single runs that were disturbed.
//!
//! Every function needs at least one value; the options guarantee one run per round.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// 10th percentile.
    pub p10: f64,
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
}

impl Summary {
    /// Of values in any order.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        Self { p10: quantile(&sorted, 0.1), median: quantile(&sorted, 0.5), p90: quantile(&sorted, 0.9) }
    }
}

/// One value per round: their median, minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of values in any order.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        Self { median: quantile(&sorted, 0.5), min: quantile(&sorted, 0.0), max: quantile(&sorted, 1.0) }
    }
}

/// 99th percentile.
pub fn p99(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.99)
}

pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The quantile `at`, interpolated linearly between the two nearest values.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    assert!(!sorted.is_empty(), "a quantile needs at least one value");
    assert!((0.0..=1.0).contains(&at), "a quantile is a fraction");
    let position = at * (sorted.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * (position - position.floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_on_the_line_between_neighbours() {
        for (values, at, expected) in [
            (&[7.0][..], 0.1, 7.0),
            (&[1.0, 3.0], 0.5, 2.0),
            (&[1.0, 2.0, 10.0], 0.5, 2.0),
            (&[0.0, 10.0, 20.0, 30.0, 40.0], 0.1, 4.0),
            (&[0.0, 10.0], 0.0, 0.0),
            (&[0.0, 10.0], 1.0, 10.0),
        ] {
            assert_eq!(quantile(values, at), expected, "{values:?} at {at}");
        }
    }

    #[test]
    fn the_order_of_values_does_not_matter() {
        let values: Vec<f64> = (0..=100).map(|index| f64::from(index * 37 % 101)).collect();
        assert_eq!(Summary::of(&values), Summary { p10: 10.0, median: 50.0, p90: 90.0 });
        assert_eq!(Spread::of(&[1.1, 0.9, 1.0]), Spread { median: 1.0, min: 0.9, max: 1.1 });
    }

    #[test]
    fn one_wild_run_does_not_move_the_median() {
        let mut values = vec![1.0; 99];
        values.push(1e6);
        assert_eq!(Summary::of(&values), Summary { p10: 1.0, median: 1.0, p90: 1.0 });
    }
}
