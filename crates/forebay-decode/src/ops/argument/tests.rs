//! Every transform from its arguments and back, and what is said of wrong ones.

use super::*;
use forebay_core::Kind;

/// An argument that fits any field of this name in the table.
fn fitting(name: &str, op: &str) -> Argument {
    let numbers = |values: &[f64]| Argument::List(values.iter().map(|value| Argument::Number(*value)).collect());
    let lengths = |values: &[i64]| Argument::List(values.iter().map(|value| Argument::Integer(*value)).collect());
    match name {
        "size" => lengths(&[4, 5]),
        "padding" => lengths(&[1, 2]),
        "kernel_size" => lengths(&[3, 5]),
        "max_size" | "center" => Argument::None,
        "num_output_channels" => Argument::Integer(3),
        "interpolation" => Argument::Text("bilinear".into()),
        "padding_mode" => Argument::Text("edge".into()),
        "dtype" => Argument::Text("float32".into()),
        "value" => Argument::Text("random".into()),
        "antialias" | "pad_if_needed" | "expand" => Argument::Bool(true),
        "scale" if op == "ToDtype" => Argument::Bool(true),
        "p" if op == "RandomChoice" => numbers(&[1.0]),
        "p" => Argument::Integer(1),
        "fill" | "mean" | "std" => numbers(&[0.5]),
        "transforms" => Argument::List(vec![Argument::Op(Op::ToTensor)]),
        _ => numbers(&[0.25, 0.5]),
    }
}

fn arguments(row: &crate::ops::Row) -> Vec<(String, Argument)> {
    row.arguments.iter().map(|name| ((*name).to_owned(), fitting(name, row.name))).collect()
}

#[test]
fn every_row_is_parsed_and_printed_with_every_argument() {
    for row in Op::TABLE {
        let op = Op::parse(row.name, arguments(row)).unwrap();
        assert_eq!((op.name(), op.row()), (row.name, Some(row)));
        let printed = op.to_string();
        assert!(printed.starts_with(&format!("{}(", row.name)) && printed.ends_with(')'), "{printed}");
        for name in row.arguments {
            assert!(printed.contains(&format!("{name}=")), "{name} is missing in {printed}");
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    for row in Op::TABLE {
        for name in row.arguments {
            // No argument of any transform is a list of names.
            let mut wrong = arguments(row);
            let place = wrong.iter().position(|(given, _)| given == name).unwrap();
            wrong[place].1 = Argument::List(vec![Argument::Text("?".into())]);
            let error = Op::parse(row.name, wrong.clone()).unwrap_err();
            assert_eq!(error.kind(), Kind::Config);
            let expected = format!("{}: {name}: expected ", row.name);
            assert!(error.message().starts_with(&expected) && error.message().ends_with(", got [\"?\"]"), "{error}");
            wrong.remove(place);
            let error = Op::parse(row.name, wrong).unwrap_err();
            assert_eq!(error.message(), format!("{}: expected the argument {name}, got none", row.name));
        }
        let mut more = arguments(row);
        more.push(("inplace".into(), Argument::Bool(true)));
        let error = Op::parse(row.name, more).unwrap_err();
        assert_eq!(error.message(), format!("{}: expected no argument inplace, got one", row.name));
    }
    let error = Op::parse("Reticulate", vec![]).unwrap_err();
    assert_eq!(error.message(), "transform: expected one of forebay.transforms, got \"Reticulate\"");
}

#[test]
fn numbers_are_taken_in_the_forms_torchvision_takes() {
    let crop = |given: &[i64]| {
        let size = Argument::List(given.iter().map(|value| Argument::Integer(*value)).collect());
        Op::parse("CenterCrop", vec![("size".into(), size)]).map(|op| op.to_string())
    };
    assert_eq!(crop(&[7]).unwrap(), "CenterCrop(size=(7, 7))");
    assert_eq!(crop(&[7, 8]).unwrap(), "CenterCrop(size=(7, 8))");
    for wrong in [&[][..], &[1, 2, 3], &[-1], &[1 << 32]] {
        assert!(crop(wrong).is_err(), "{wrong:?}");
    }
    let flip = |p| Op::parse("RandomHorizontalFlip", vec![("p".into(), p)]).map(|op| op.to_string());
    assert_eq!(flip(Argument::Integer(1)).unwrap(), "RandomHorizontalFlip(p=1.0)");
    assert!(flip(Argument::Bool(true)).is_err());
}
