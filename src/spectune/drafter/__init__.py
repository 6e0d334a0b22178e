"""Training a draft: data, features, model, training, evaluation, export, forecast. Alone in importing torch."""
