package main

import (
	"fmt"
	"time"

	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

type parameters struct {
	provisionError, expandError string
	provisionDelay, expandDelay time.Duration
	capacity                    resource.Quantity
	roundUpTo                   int64
}

// parse reads the parameters of a class; an unknown one is an error.
func parse(class *storage.StorageClass) (parameters, error) {
	found := parameters{capacity: unlimited, roundUpTo: 1}
	for name, value := range class.Parameters {
		var err error
		switch name {
		case "provisionError":
			found.provisionError = value
		case "expandError":
			found.expandError = value
		case "provisionDelay":
			found.provisionDelay, err = time.ParseDuration(value)
		case "expandDelay":
			found.expandDelay, err = time.ParseDuration(value)
		case "capacity":
			found.capacity, err = resource.ParseQuantity(value)
		case "roundUpTo":
			var unit resource.Quantity
			unit, err = resource.ParseQuantity(value)
			found.roundUpTo = max(unit.Value(), 1)
		default:
			err = fmt.Errorf("it is unknown")
		}
		if err != nil {
			return found, fmt.Errorf("parameter %s of StorageClass %s: %w", name, class.Name, err)
		}
	}
	return found, nil
}

func (p parameters) rounded(size resource.Quantity) resource.Quantity {
	units := (size.Value() + p.roundUpTo - 1) / p.roundUpTo
	return *resource.NewQuantity(units*p.roundUpTo, resource.BinarySI)
}
